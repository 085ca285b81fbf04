"""Requests: operations that have been started, as users hold them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ..arguments.checks import array, reject
from ..arguments.dtypes import avals_of
from ..environment import settings
from ..layout.packing import Tree, group, is_tree, pack, unpack
from ..mpi.handles import Communicator
from ..operations._eager import EagerCalls, starting
from ..operations._trees import compare_trees, wrong_leaf
from ..operations.exchange import Exchange
from ..xla import call_sites
from ..xla.flush import flush
from ..xla.jax_compat import ShapedArray, trace_state_clean
from .flights import Params, flight_of
from .start_and_wait import Flight, bind_start, bind_wait, forwarded_operands

T = TypeVar("T")


class _Step(NamedTuple):
    """A function of the result, to be called once it is there."""

    function: Callable[..., Any]
    params: Params


@jax.tree_util.register_pytree_node_class
class Request(Generic[T]):
    """A nonblocking operation that has been started. :func:`wait` completes it.

    A pytree, which can pass through jit, loops and branches: an iteration of a loop may
    wait for what the previous one started.
    """

    def __init__(
        self,
        arrays: tuple[Sequence[Any], ...],
        flights: tuple[Flight, ...],
        steps: tuple[_Step, ...],
    ) -> None:
        # For each flight its ticket and the forwarded arrays, and for each step its arrays.
        self._arrays = arrays
        self._flights = flights
        self._steps = steps

    def __repr__(self) -> str:
        functions = dict.fromkeys(flight.function for flight in self._flights)
        return f"<Request: {', '.join(functions)}>"

    def tree_flatten(self) -> tuple[Any, Any]:
        return self._arrays, (self._flights, self._steps)

    @classmethod
    def tree_unflatten(cls, static: Any, arrays: Any) -> Request[T]:
        return cls(arrays, *static)

    def then(
        self, function: Callable[..., Any], *arrays: Any, **params: Any
    ) -> Request[Any]:
        """Have a function called with the result, these arrays, and the parameters.

        Requests compare by what they are for, so it has to be one that does: one of a
        module, or a method.
        """
        step = _Step(function, Params(params))
        return Request((*self._arrays, arrays), self._flights, (*self._steps, step))

    def _wait(self) -> T:
        count = len(self._flights)
        value: Any = [
            bind_wait(flight, ticket, forwarded, may_be_zero=False)
            for flight, (ticket, *forwarded) in zip(
                self._flights, self._arrays[:count], strict=True
            )
        ]
        for (function, params), arrays in zip(
            self._steps, self._arrays[count:], strict=True
        ):
            value = function(value, *arrays, **params)
        result: T = value
        return result


def start(flights: Sequence[tuple[Flight, Sequence[Any]]]) -> Request[list[list[Any]]]:
    """Start operations for a user, each with its operands.

    The result of the request is a list with the results of each.
    """
    prepare()
    arrays = []
    for flight, operands in flights:
        ticket = bind_start(flight, operands)
        if trace_state_clean():
            set_line(ticket, call_sites.frames_of(sys._getframe()))
        arrays.append((ticket, *forwarded_operands(flight, operands)))
    return Request(tuple(arrays), tuple(flight for flight, _ in flights), ())


def start_call(
    operation: EagerCalls, communicator: Communicator, *operands: Any, **params: Any
) -> Any:
    """Start an operation in place of a call of it: the request, or the result of the call.

    The latter is for a call that only prepares another one, as an exchange of counts does.
    """
    if type(operation) is not Exchange and any(map(is_tree, operands)):
        return _start_trees(operation, communicator, operands, params)
    if type(operation) is Exchange:
        arrays = [x for tree in operands for x in tree.arrays(operation.name)]
        complete: Any = _Unflatten(operands[-1].structure)
    else:
        pairs = zip(operation.operands, operands, strict=True)
        arrays = [array(operation.name, name, x) for name, x in pairs]
        complete = _single_result
    arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in arrays]
    flight = _checked_flight(operation, communicator, arrays, params)
    if flight is None:
        with starting(None):
            return operation(communicator, *operands, **params)
    request = start([(flight, arrays)]).then(complete)
    if operation.count_operands:
        return request.then(operation.complete, *arrays[-operation.count_operands :])
    return request


def _checked_flight(
    operation: EagerCalls,
    communicator: Communicator,
    arrays: Sequence[Any],
    params: dict[str, Any],
) -> Flight | None:
    """The flight of an operation on these arrays, or None if it can't be started."""
    types = tuple((x.shape, x.dtype) for x in arrays)
    # Calls that are alike share it, as it takes longer to make than to start.
    key = _checked_flight, operation, types, frozenset(params.items())
    flight: Flight | None = communicator.programs.get(key)
    if flight is None:
        params = {**params, "communicator": communicator}
        flight = flight_of(operation, avals_of(arrays), params, "i")
        if flight is not None:
            flight.check()
            communicator.programs[key] = flight
    return flight


def _start_trees(
    operation: EagerCalls,
    communicator: Communicator,
    operands: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    """Start an operation for packed groups of the leaves of a tree for each operand."""
    pairs = zip(operation.operands, operands, strict=False)
    trees = [x if type(x) is Tree else Tree(name, x) for name, x in pairs]
    try:
        return _start_leaves(operation, communicator, trees, params)
    except TypeError as error:
        raise (wrong_leaf(operation, trees, params) or error) from None


def _start_leaves(
    operation: EagerCalls,
    communicator: Communicator,
    trees: Sequence[Tree],
    params: dict[str, Any],
) -> Request[Any]:
    leaves = [list(map(jnp.asarray, tree.arrays(operation.name))) for tree in trees]
    if settings.check and operation.is_collective:
        compare_trees(operation, communicator, trees[0], params)
    axis, result_axis = operation.batch_axes(**params, communicator=communicator)
    grouped = [group(arrays, axis) for arrays in leaves]
    if len({len(groups) for groups in grouped}) > 1:
        raise NotImplementedError(
            f"i{operation.name} got trees that take different numbers of messages"
        )
    flights: list[tuple[Flight, Sequence[Any]]] = []
    groups = []
    for indices in zip(*grouped, strict=True):
        members = [
            [arrays[n] for n in positions]
            for arrays, positions in zip(leaves, indices, strict=True)
        ]
        packed = [pack(arrays, axis) for arrays in members]
        flight = _checked_flight(operation, communicator, packed, params)
        assert flight is not None
        flights.append((flight, packed))
        groups.append((tuple(indices[-1]), tuple(avals_of(members[-1]))))
    unpack_results: Any = _Unpack(trees[-1].structure, tuple(groups), axis, result_axis)
    return start(flights).then(unpack_results)


class _Unpack(NamedTuple):
    """Gives the tree of the results for packed groups of leaves."""

    structure: Any
    #: The indices of the leaves of each group, and their types.
    groups: tuple[tuple[tuple[int, ...], tuple[ShapedArray, ...]], ...]
    axis: int
    result_axis: int

    def __call__(self, results: Sequence[Sequence[Any]]) -> Any:
        leaves: dict[int, Any] = {}
        for (indices, avals), group_results in zip(self.groups, results, strict=True):
            for result in group_results:
                unpacked = unpack(result, avals, self.axis, self.result_axis)
                leaves.update(zip(indices, unpacked, strict=True))
        if self.groups and not leaves:
            return None
        sorted_leaves = [leaves[index] for index in sorted(leaves)]
        return jax.tree_util.tree_unflatten(self.structure, sorted_leaves)


def _single_result(results: Sequence[Sequence[Any]]) -> Any:
    """The result of one operation, or None where it has none on this process."""
    ((*result,),) = results
    return result[0] if result else None


class _Unflatten(NamedTuple):
    """Gives the tree of the results of one operation."""

    structure: Any

    def __call__(self, results: Sequence[Sequence[Any]]) -> Any:
        ((*leaves,),) = results
        return jax.tree_util.tree_unflatten(self.structure, leaves)


def set_line(ticket: Any, frames: Iterable[call_sites.Frame]) -> None:
    """Say which functions were under way when an eager call gave a ticket."""
    # Without a program of JAX's that takes the first element.
    _core.set_flight_line(int(np.asarray(ticket)[0]), call_sites.describe_stack(frames))


def wait(request: Request[T]) -> T:
    """Wait for a nonblocking operation, and return its result.

    Arguments:
        request: The request of the operation. The process that started it can wait for it
            once.

    Returns:
        The result of the blocking operation, whose name lacks the ``i``.

    """
    if not isinstance(request, Request):
        reject("wait", "request", (Request,), request)
    return request._wait()


@functools.cache
def prepare() -> None:
    """Start the progress thread, and have requests reported that nobody waits for."""
    is_possible = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
    _core.set_pushing(settings.progress_thread and is_possible)
    atexit.register(_finish)


#: The seconds that requests which were not waited for have at the end of a program.
_PATIENCE = 0.5
#: The number of lines in the report about them.
_MOST_LINES = 20


def _finish() -> None:
    with contextlib.suppress(Exception):  # that of a program, which was raised before
        flush()
    unwaited = _core.finish_flights(_PATIENCE)
    if not unwaited:
        return
    requests = "1 request was" if len(unwaited) == 1 else f"{len(unwaited)} requests were"
    text = [f"mpi4jax: r{MPI.COMM_WORLD.Get_rank()} | {requests} never waited for"]
    counts = Counter(
        line if is_done else f"{line}, which is still in flight"
        for line, is_done in unwaited
    )
    for line, count in itertools.islice(counts.items(), _MOST_LINES):
        text.append(f"  {line}" if count == 1 else f"  {line} ({count} times)")
    if len(counts) > _MOST_LINES:
        text.append(f"  and others, at {len(counts) - _MOST_LINES} more lines")
    print("\n".join(text), file=sys.stderr)
