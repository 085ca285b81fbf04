"""Requests: operations that have been started, as users hold them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._override import override

from ..arguments.checks import reject
from ..arguments.dtypes import avals_of
from ..arguments.types import Array, ArrayLike, PyTree
from ..environment import settings
from ..forks import at_exit
from ..layout.packing import PackedGroup, Tree, packed_groups, result_tree, unpack_groups
from ..operations._calls import Call
from ..operations._eager import ArrayOrLeaves
from ..operations._leaves import LeafOperation
from ..operations._operation import Operation
from ..xla.call_sites import current_line
from ..xla.flush import flush
from ..xla.jax_compat import trace_state_clean
from .flights import flight_of
from .start_and_wait import Flight, bind_start, bind_wait, operands_of_wait

T = TypeVar("T")


class Params(dict[str, Any]):
    """The parameters of a function, which don't change from here on."""

    @override
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


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
        arrays: tuple[Sequence[Array], ...],
        flights: tuple[Flight, ...],
        steps: tuple[_Step, ...],
    ) -> None:
        # For each flight its ticket and what wait takes beside it, and for each step its
        # arrays.
        self._arrays = arrays
        self._flights = flights
        self._steps = steps

    @override
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
        """A request whose wait calls `function` with the result, `arrays` and `params`.

        Requests compare by what they are for, so the function has to be one that does: one
        of a module, or a method.
        """
        step = _Step(function, Params(params))
        return Request((*self._arrays, arrays), self._flights, (*self._steps, step))

    def _wait(self) -> T:
        count = len(self._flights)
        value: PyTree = [
            bind_wait(flight, ticket, wait_operands, may_be_zero=False)
            for flight, (ticket, *wait_operands) in zip(
                self._flights, self._arrays[:count], strict=True
            )
        ]
        for (function, params), arrays in zip(
            self._steps, self._arrays[count:], strict=True
        ):
            value = function(value, *arrays, **params)
        result: T = value
        return result


def start(
    flights: Sequence[tuple[Flight, Sequence[Array]]],
    *steps: _Step,
    operation: Operation | None = None,
) -> Request[Any]:
    """Start operations for a user, each with its operands.

    The result of the request is a list with the results of each, to which the steps are
    applied. If they are parts of one `operation`, that may complete their results before.
    """
    prepare()
    arrays = []
    for flight, operands in flights:
        ticket = bind_start(flight, operands)
        if trace_state_clean():
            # The name of a plan's function. The core knows the names of operations.
            plan_function = flight.function if "." in flight.function else ""
            set_line(ticket, current_line(plan_function))
        arrays.append((ticket, *operands_of_wait(flight, operands)))
    step_arrays: list[tuple[Any, ...]] = [()] * len(steps)
    if operation is not None and operation.is_completed:
        steps = (_Step(_complete, Params(operation=operation)), *steps)
        step_arrays.insert(0, tuple(operands for _, operands in flights))
    all_flights = tuple([flight for flight, _ in flights])
    return Request((*arrays, *step_arrays), all_flights, steps)


#: The structure of a tree that is an array.
_ARRAY = jax.tree_util.tree_structure(0)


def start_call(call: Call[PyTree]) -> Request[Any]:
    """Start an operation for a user."""
    arrays = call.arrays()
    if arrays is None:
        request = call.with_leaves(functools.partial(_start_leaves, call))
    else:
        flight = _flight_on(call, arrays)
        request = start([flight], _unflattened(_ARRAY), operation=call.operation)
    if call.step is None:
        return request
    function, more_arrays, params = call.step
    return request.then(function, *more_arrays, **params)


def _complete(
    results: Sequence[Sequence[Array]], *groups: Sequence[Array], operation: Operation
) -> list[list[Array]]:
    """The results that :meth:`Operation.complete` makes of the primitives' results."""
    pairs = zip(results, groups, strict=True)
    return [[operation.complete(x, *operands) for x in each] for each, operands in pairs]


def _flight_on(
    call: Call[PyTree], operands: Sequence[ArrayLike]
) -> tuple[Flight, Sequence[Array]]:
    """The flight of an operation on these operands, and these as arrays."""
    arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in operands]
    operation = call.operation
    if operation.communicator.axes:
        operation, arrays = operation.with_varying(arrays)
    programs = operation.communicator.programs
    # Calls that are alike share it, as it takes longer to make than to start.
    key = _flight_on, operation, tuple((x.shape, x.dtype) for x in arrays)
    flight: Flight | None = programs.get(key)
    if flight is None:
        flight = flight_of(operation, avals_of(arrays), call.function)
        assert flight is not None, f"the core can't start {operation.name}"
        flight.check()
        programs[key] = flight
    return flight, arrays


def _start_leaves(
    call: Call[PyTree], trees: Sequence[Tree], operands: Sequence[ArrayOrLeaves]
) -> Request[Any]:
    """Start an operation for the leaves of a tree for each operand, packed in groups."""
    operation, structure = call.operation, trees[-1].structure
    leaves, numbers = operation.split_operands(operands)
    if isinstance(operation, LeafOperation):
        flight = _flight_on(call, [*itertools.chain(*leaves), *numbers])
        return start([flight], _unflattened(structure))
    axis, result_axis = operation.batch_axes()
    flights = []
    groups = []
    for packed, group in packed_groups(leaves, axis):
        arrays = [x for x in packed if x is not None]
        if len(arrays) < len(packed):
            raise NotImplementedError(
                f"{call.function} got trees that take different numbers of messages"
            )
        flights.append(_flight_on(call, [*arrays, *numbers]))
        groups.append(group)
    params = {"groups": tuple(groups), "axis": axis, "result_axis": result_axis}
    unpack = _Step(_unpack, Params(structure=structure, **params))
    return start(flights, unpack, operation=operation)


def _unpack(
    results: Sequence[Sequence[Array]],
    *,
    structure: PyTreeDef,
    groups: Sequence[PackedGroup],
    axis: int,
    result_axis: int,
) -> PyTree:
    """The tree of the results for packed groups of leaves."""
    pairs = zip(groups, results, strict=True)
    flat = ((group, x) for group, group_results in pairs for x in group_results)
    return result_tree(structure, unpack_groups(flat, axis, result_axis))


@functools.cache
def _unflattened(structure: PyTreeDef) -> _Step:
    """The step that makes a tree of an operation's results, or None without results."""
    return _Step(_unflatten, Params(structure=structure))


def _unflatten(results: Sequence[Sequence[Array]], *, structure: PyTreeDef) -> PyTree:
    (leaves,) = results
    return result_tree(structure, leaves)


def set_line(ticket: Array, line: str) -> None:
    """Tell the core the line of the eager call that has returned a ticket."""
    # Without a program of JAX's that takes the first element.
    _core.set_flight_line(int(np.asarray(ticket)[0]), line)


def wait(request: Request[T]) -> T:
    """Wait for a nonblocking operation, and return its result.

    Arguments:
        request: The request of the operation. The process that started it can wait for it
            once.

    Returns:
        The result of the blocking operation, whose name lacks the ``i``.

    """
    if not isinstance(request, Request):
        reject("wait", "request", "what a nonblocking operation has returned", request)
    return request._wait()


@functools.cache
def prepare() -> None:
    """Start the progress thread, and have requests reported that nobody waits for."""
    is_possible = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
    _core.set_pushing(settings.progress_thread and is_possible)
    at_exit(_finish)


#: The number of seconds for which the end of a program waits for unfinished requests.
_PATIENCE = 0.5
#: The number of lines in the report about requests that were never waited for.
_MAX_LINES = 20


def _finish() -> None:
    with contextlib.suppress(Exception):  # a program's, which was raised before
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
    for line, count in itertools.islice(counts.items(), _MAX_LINES):
        text.append(f"  {line}" if count == 1 else f"  {line} ({count} times)")
    if len(counts) > _MAX_LINES:
        text.append(f"  and others, at {len(counts) - _MAX_LINES} more lines")
    print("\n".join(text), file=sys.stderr)
