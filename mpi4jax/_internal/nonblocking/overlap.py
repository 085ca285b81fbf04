"""Computing while messages are in flight.

XLA runs what does not depend on each other in any order. So what is to be computed between
the start of a message and the wait for it has to depend on the one, and the other on it.
:func:`in_order` makes it so: a call without effect, in order with all calls of MPI, whose
results are its operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.checks import check_callable
from ..arguments.dtypes import avals_of
from ..mpi import handles
from ..mpi.handles import Communicator
from ..operations._declaration import get_operation
from ..operations._eager import on_own_devices
from ..operations._lowering import lower_everywhere
from ..operations._messages import NO_MESSAGES, Messages
from ..operations.sendrecv import tangents_operation
from ..xla.call_sites import Frame
from ..xla.effects import custom_call_target, lower_in_order, ordered_effect
from ..xla.jax_compat import (
    Literal,
    Primitive,
    Tracer,
    ad,
    batching,
    def_eager,
    eval_equation,
    is_ordered,
    is_ref,
    source_info_of,
    trace_state_clean,
    traceback_of_equation,
)
from .requests import Flight, Types, collective_flight, exchange_flight, prepare, set_line

T = TypeVar("T")
R = TypeVar("R")

in_order_p = Primitive("in_order_mpi")
in_order_p.multiple_results = True
def_eager(in_order_p)


def _lower(ctx: Any, *operands: Any) -> list[Any]:
    target = custom_call_target("in_order")
    aliases = {n: n for n in range(len(operands))}
    return lower_in_order(ctx, target, operands, {}, aliases=aliases, takes_slices=False)


def _of_some(values: Sequence[Any]) -> list[Any]:
    """The tangents or cotangents of some arrays, in order: of those that are not zero."""
    given = [x for x in values if type(x) is not ad.Zero]
    found = iter(in_order_p.bind(*given) if given else ())
    return [x if type(x) is ad.Zero else next(found) for x in values]


in_order_p.def_effectful_abstract_eval(
    # All else of a type stays: what it varies over inside of a `shard_map`.
    lambda *avals: ([x.update(weak_type=False) for x in avals], {ordered_effect})
)
ad.primitive_jvps[in_order_p] = lambda primals, tangents: (
    in_order_p.bind(*primals),
    _of_some(tangents),
)
ad.primitive_transposes[in_order_p] = lambda cotangents, *_: _of_some(cotangents)
batching.primitive_batchers[in_order_p] = lambda operands, axes: (
    in_order_p.bind(*operands),
    axes,
)
lower_everywhere(in_order_p, _lower)


def in_order(tree: T) -> T:
    """Put a computation in order with the calls of MPI.

    What depends on the result is computed after all earlier calls of MPI, and what
    the argument depends on is computed before all later ones. Use it to place a computation
    between the start of a message and the wait for it.

    Arguments:
        tree: A tree of arrays.

    Returns:
        The tree, unchanged.

    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if trace_state_clean() or not leaves:
        return tree  # Eager calls are made one after the other anyway.
    result: T = jax.tree_util.tree_unflatten(structure, _in_order(leaves))
    return result


def _in_order(leaves: Sequence[Any]) -> list[Any]:
    found: list[Any] = in_order_p.bind(*map(jnp.asarray, leaves))
    return found


def overlap(communicate: Callable[[], T], *, during: Callable[[], R]) -> tuple[T, R]:
    """Compute while messages are in flight.

    The operations of ``communicate`` that do not depend on the result of another one are
    started. Then ``during`` is computed. Then the operations are waited for, and the rest
    of ``communicate`` is done. Operations that have no nonblocking form, and those inside
    of loops and branches, are done before ``during``.

    Refs (``jax.new_ref``) and callbacks follow this order: if ``communicate`` writes the
    result of an operation to a ref, ``during`` reads the old value.

    Inside of :func:`jax.jit`, XLA computes nothing of ``during`` before the operations are
    started, except what does not use the program's arrays.

    Arguments:
        communicate: A function without arguments that calls MPI.
        during: A function without arguments.

    Returns:
        The results of both functions.

    """
    check_callable("overlap", "communicate", communicate, "no arguments")
    check_callable("overlap", "during", during, "no arguments")
    first = _started(communicate)
    if trace_state_clean():
        result = during()
        return first.finish(), jax.block_until_ready(result)
    computed = _Traced(during)
    places = [
        n
        for n, x in enumerate(computed.consts)
        # JAX keeps what is read from a ref and written to it in order by itself.
        if isinstance(x, Tracer) and not is_ref(x.aval)
    ]
    if places:
        # What `communicate` goes on with is this, too: XLA copies nothing then.
        given = [computed.consts[n] for n in places]
        for n, old, new in zip(places, given, _in_order(given), strict=True):
            computed.consts[n] = new
            first.replace(old, new)
    results = computed()
    if results:
        results = _in_order(results)
    return first.finish(), computed.tree(results)


class _Traced:
    """A function without arguments, traced."""

    def __init__(self, function: Callable[[], Any]) -> None:
        closed, shape = jax.make_jaxpr(function, return_shape=True)()
        self.jaxpr: Any = closed.jaxpr
        #: The arrays that it takes from outside.
        self.consts = list(closed.consts)
        self._structure = jax.tree_util.tree_structure(shape)

    def __call__(self) -> list[Any]:
        env = dict(zip(self.jaxpr.constvars, self.consts, strict=True))
        for equation in self.jaxpr.eqns:
            _eval(equation, env)
        return _read(self.jaxpr.outvars, env)

    def tree(self, leaves: Sequence[Any]) -> Any:
        return jax.tree_util.tree_unflatten(self._structure, leaves)


def _read(variables: Sequence[Any], env: dict[Any, Any]) -> list[Any]:
    return [x.val if isinstance(x, Literal) else env[x] for x in variables]


def _eval(equation: Any, env: dict[Any, Any]) -> None:
    with source_info_of(equation):
        results = eval_equation(equation, _read(equation.invars, env))
    env.update(zip(equation.outvars, results, strict=True))


class _Split(_Traced):
    """A function that communicates, in two halves."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(function)
        self._env: dict[Any, Any] = dict(
            zip(self.jaxpr.constvars, self.consts, strict=True)
        )
        #: What comes later: results, and refs that are not yet read or written.
        self._missing: set[Any] = set()
        self._later: list[Any] = []
        self._started: list[tuple[Any, Flight, Any, list[Any]]] = []

    def replace(self, old: Any, new: Any) -> None:
        """Take another array from outside in place of one, from now on."""
        for variable, value in zip(self.jaxpr.constvars, self.consts, strict=True):
            if value is old:
                self._env[variable] = new

    def start(self) -> None:
        effects_later: set[Any] = set()
        for equation in self.jaxpr.eqns:
            variables = {x for x in equation.invars if not isinstance(x, Literal)}
            effects = set(filter(is_ordered, equation.effects))
            if variables & self._missing or effects & effects_later:
                # Calls stay in order, and so does all else that has effects.
                effects_later |= effects
                self._later.append(equation)
                self._missing.update(equation.outvars)
                self._missing.update(x for x in variables if is_ref(x.aval))
                continue
            flight = _flight_of(equation)
            if flight is None:
                _eval(equation, self._env)
                continue
            operands = _read(equation.invars, self._env)
            with source_info_of(equation):
                ticket = flight.start(operands)
            if trace_state_clean():
                # Its program may be that of another line. Nobody waits if `during` fails.
                set_line(ticket, starmap(Frame, traceback_of_equation(equation)))
            kept = flight.those_kept(operands[len(flight.sent) :])
            self._started.append((equation, flight, ticket, kept))
            self._missing.update(equation.outvars)

    @on_own_devices
    def finish(self) -> Any:
        for equation, flight, ticket, kept in self._started:
            with source_info_of(equation):
                results = flight.wait(ticket, kept, may_be_zero=False)
            self._env.update(zip(equation.outvars, results, strict=True))
        for equation in self._later:
            _eval(equation, self._env)
        return self.tree(_read(self.jaxpr.outvars, self._env))


@on_own_devices
def _started(communicate: Callable[[], Any]) -> _Split:
    split = _Split(communicate)
    split.start()
    return split


# The nonblocking forms of operations.


def _flight_of(equation: Any) -> Flight | None:
    """What starts an operation, if it has such a form."""
    form: Any = _FORMS.get(equation.primitive)
    if form is None or equation.params.get("status_number", handles.NO_STATUS) >= 0:
        return None
    prepare()
    avals = avals_of(x.aval for x in equation.invars)
    flight: Flight = form(tuple(avals), **equation.params)
    return flight


def _collective(name: str) -> Callable[..., Flight]:
    def form(avals: Types, *, communicator: Communicator, **params: Any) -> Flight:
        (x,) = avals
        return collective_flight(f"i{name}", x, communicator, **params)

    return form


def _exchange(
    avals: Types,
    *,
    sent: Messages,
    received: Messages,
    communicator: Communicator,
    function: str = "exchange",
    is_marked: bool = False,
) -> Flight:
    number = sum(sent.leaf_counts)
    types = avals[:number], avals[number : number + sum(received.leaf_counts)]
    return exchange_flight(
        function, communicator, *types, sent, received, is_marked=is_marked
    )


def _sendrecv(
    avals: Types,
    *,
    source: int,
    dest: int,
    sendtag: int,
    recvtag: int,
    status_number: int,
    **params: Any,
) -> Flight:
    sent, received = Messages.single(dest, sendtag), Messages.single(source, recvtag)
    return _exchange(avals, sent=sent, received=received, function="sendrecv", **params)


def _send(avals: Types, *, dest: int, tag: int, **params: Any) -> Flight:
    sent = Messages.single(dest, tag)
    return _exchange(avals, sent=sent, received=NO_MESSAGES, function="send", **params)


def _recv(
    avals: Types, *, source: int, tag: int, status_number: int, **params: Any
) -> Flight:
    received = Messages.single(source, tag)
    return _exchange(avals, sent=NO_MESSAGES, received=received, function="recv", **params)


#: By primitive, as a name may be that of several: with a token, or for tangents.
_FORMS = {
    **{
        get_operation(name).primitive: form
        for name, form in {
            "allgather": _collective("allgather"),
            "allreduce": _collective("allreduce"),
            "alltoall": _collective("alltoall"),
            "bcast": _collective("bcast"),
            "exchange": _exchange,
            "recv": _recv,
            "send": _send,
            "sendrecv": _sendrecv,
        }.items()
    },
    tangents_operation.primitive: functools.partial(_sendrecv, is_marked=True),
}
