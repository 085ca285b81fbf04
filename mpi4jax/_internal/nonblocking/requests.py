"""Operations in two halves: one that starts, and one that waits.

What is in flight belongs to the core. A program holds a ticket, two floats, by which `wait`
finds it, and knows the rest when it is compiled: a :class:`Flight`. As they are floats, JAX
differentiates tickets like any array. With x for what is sent, t for a ticket and y for
what comes, both halves are linear:

    start: x -> t        transposed, wait:  t -> x, of the messages back
    wait:  t -> y        transposed, start: y -> t, of the messages back

So the derivative of a program has messages in flight where the program has. JAX may add
zeros to a ticket that is a cotangent, which changes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ..arguments.checks import reject
from ..arguments.dtypes import DATATYPES, SUM, carrier_aval, check_dtype, check_reduction
from ..arguments.types import Array
from ..environment import settings
from ..mpi.handles import Communicator
from ..operations._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    refuse_derivative,
    refuse_unknown_source,
)
from ..operations._batching import batch_at
from ..operations._declaration import get_operation
from ..operations._eager import makes_eager_calls
from ..operations._lowering import call_in_program, lower_everywhere
from ..operations._messages import (
    Messages,
    message_attributes,
    message_avals,
    pack_messages,
    unpack_messages,
)
from ..operations._transposes import inexact_tangents, is_inexact, tangents_of
from ..operations.sendrecv import check_batch_of_tangents, mark_p
from ..xla import call_sites
from ..xla.call_sites import Envelopes
from ..xla.effects import ordered_effect
from ..xla.flush import flush
from ..xla.jax_compat import (
    ShapedArray,
    VaryingPrimitive,
    ad,
    batching,
    convert,
    trace_state_clean,
)

T = TypeVar("T")

TICKET = ShapedArray((2,), np.dtype(np.float32))

Types = tuple[ShapedArray, ...]


class Flight(NamedTuple):
    """What is in flight, as far as it is known when a program is compiled."""

    #: The handler that starts it: a key of :data:`KINDS`.
    name: str
    communicator: Communicator
    #: What is given, and what comes.
    sent: Types
    received: Types
    #: What is further to be said, as pairs of name and value.
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    def start(self, operands: Sequence[Any], *, may_be_lost: bool = False) -> Any:
        """The ticket of such operands.

        What is sent, and for messages what stands for what comes: nobody reads it, but it
        is differentiated and mapped over, as that of the blocking operation is.
        """
        return start_p.bind(*operands, flight=self, may_be_lost=may_be_lost)

    def wait(self, ticket: Any, kept: Sequence[Any], *, may_be_zero: bool) -> list[Any]:
        """What comes for a ticket. It is zero if a ticket that may be zero is."""
        found: list[Any] = wait_p.bind(ticket, *kept, flight=self, may_be_zero=may_be_zero)
        return found

    def are_kept(self) -> list[bool]:
        """Which results are arrays that `wait` is given, as nothing comes for them."""
        return self.kind.are_kept(self)

    def with_kept(self, kept: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """One for each result: the next of `kept` where it is kept, else the other one."""
        left = iter(kept)
        pairs = zip(others, self.are_kept(), strict=True)
        return [next(left) if is_kept else other for other, is_kept in pairs]

    def those_kept(self, leaves: Sequence[Any]) -> list[Any]:
        """Those of as many leaves as there are results that `wait` is given."""
        return list(itertools.compress(leaves, self.are_kept()))


class Kind:
    """How a kind of operation is started and transformed. This one holds arrays."""

    def leaving(
        self, ctx: Any, operands: Sequence[Any], flight: Flight
    ) -> tuple[list[Any], list[ShapedArray]]:
        """What the core is given, and the types of that."""
        avals = list(map(carrier_aval, flight.sent))
        return list(map(convert, operands, avals)), avals

    def attributes(self, flight: Flight) -> dict[str, Any]:
        """What the core is further told."""
        return {}

    def envelopes(self, flight: Flight) -> Envelopes | None:
        """The messages that are sent and received."""
        return None

    def arriving(self, flight: Flight) -> list[ShapedArray]:
        """What the core has when it comes."""
        return list(map(carrier_aval, flight.received))

    def results(
        self, ctx: Any, came: Sequence[Any], kept: Sequence[Any], flight: Flight
    ) -> list[Any]:
        """The results of a wait, from what the core has."""
        return list(map(convert, came, flight.received))

    def are_kept(self, flight: Flight) -> list[bool]:
        return [False] * len(flight.received)

    def batch_axes(self, flight: Flight) -> tuple[int, int]:
        return 0, 0

    def batched(self, flight: Flight, size: int) -> Flight:
        def with_batch(avals: Types, axis: int) -> Types:
            return tuple(
                ShapedArray((*x.shape[:axis], size, *x.shape[axis:]), x.dtype)
                for x in avals
            )

        axis, result_axis = self.batch_axes(flight)
        return flight._replace(
            sent=with_batch(flight.sent, axis),
            received=with_batch(flight.received, result_axis),
        )

    def of_tangents(self, flight: Flight) -> Flight:
        """What is in flight for the tangents: none of what has no tangents."""
        return flight._replace(
            sent=tuple(x for x in flight.sent if is_inexact(x)),
            received=tuple(x for x in flight.received if is_inexact(x)),
        )

    def push(
        self, flight: Flight, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Any, Any]:
        """The tickets of arrays and of their tangents."""
        of_tangents = self.of_tangents(flight)
        pushed = inexact_tangents(primals, tangents)
        return flight.start(primals), of_tangents.start(pushed)

    def check_batch(self, flight: Flight, axes: Sequence[int | None]) -> None:
        """Refuse a map in which operands with a batch at these axes mean nothing."""

    def back(self, flight: Flight) -> Flight:
        """What is in flight for the cotangents."""
        return flight._replace(sent=flight.received, received=flight.sent)

    def pull(self, flight: Flight, came: Sequence[Any]) -> Sequence[Any]:
        """The cotangents of what is sent, from what came back."""
        return came


#: The functions whose messages have another process's tangents: one each way, or only one.
_PAIRS = ("isendrecv", "sendrecv")
_HALVES = ("irecv", "isend", "recv", "send")


class _Exchange(Kind):
    """Any number of messages.

    What the blocking operation refuses to differentiate is refused here, too.
    """

    @staticmethod
    def _ends(flight: Flight) -> tuple[Messages, Messages]:
        params = dict(flight.params)
        return params["sent"], params["received"]

    @staticmethod
    def _function(flight: Flight) -> str:
        """What the user has called."""
        function: str = dict(flight.params)["function"]
        return function

    @staticmethod
    def _is_marked(flight: Flight) -> bool:
        """Whether these are tangents, of which the last operand is the arrays' mark."""
        is_marked: bool = dict(flight.params)["is_marked"]
        return is_marked

    def leaving(
        self, ctx: Any, operands: Sequence[Any], flight: Flight
    ) -> tuple[list[Any], list[ShapedArray]]:
        sent, _ = self._ends(flight)
        return pack_messages(ctx, sent, operands)

    def attributes(self, flight: Flight) -> dict[str, Any]:
        arrays = [
            number
            for aval in self.arriving(flight)
            for number in (DATATYPES[str(aval.dtype)][0], aval.size)
        ]
        found = message_attributes(flight.communicator, *self._ends(flight))
        return {**found, "arrays": np.array(arrays, np.int64)}

    def envelopes(self, flight: Flight) -> Envelopes | None:
        sent, received = self._ends(flight)
        return Envelopes(sent.envelopes(flight.sent), received.envelopes(flight.received))

    def arriving(self, flight: Flight) -> list[ShapedArray]:
        _, received = self._ends(flight)
        return message_avals(received, flight.received)

    def results(
        self, ctx: Any, came: Sequence[Any], kept: Sequence[Any], flight: Flight
    ) -> list[Any]:
        _, received = self._ends(flight)
        of_all = flight.with_kept(kept, [None] * len(flight.received))
        return unpack_messages(ctx, received, came, of_all)

    def are_kept(self, flight: Flight) -> list[bool]:
        _, received = self._ends(flight)
        return received.are_forwarded()

    def of_tangents(self, flight: Flight) -> Flight:
        sent, received = self._ends(flight)
        params = {
            **dict(flight.params),
            "sent": sent.select(list(map(is_inexact, flight.sent))),
            "received": received.select(list(map(is_inexact, flight.received))),
            "is_marked": self._function(flight) in _PAIRS,
        }
        return super().of_tangents(flight)._replace(params=tuple(params.items()))

    def push(
        self, flight: Flight, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Any, Any]:
        function = self._function(flight)
        if function in _HALVES:
            refuse_derivative(function)
        pushed = inexact_tangents(primals, tangents)
        if function in _PAIRS:
            is_marked = self._is_marked(flight)
            pushed.append(primals[-1] if is_marked else mark_p.bind(*primals))
        return flight.start(primals), self.of_tangents(flight).start(pushed)

    def check_batch(self, flight: Flight, axes: Sequence[int | None]) -> None:
        if self._is_marked(flight):
            check_batch_of_tangents(self._function(flight), axes[-1])

    def back(self, flight: Flight) -> Flight:
        if self._function(flight) in _HALVES:
            refuse_derivative(self._function(flight))
        sent, received = self._ends(flight)
        if len(sent.ranks) == len(received.ranks) == 1 and received.tags == (ANY_TAG,):
            # As sendrecv does: which tag it comes with, its sender alone knows.
            sent, received = (
                sent._replace(tags=(ANY_TAG,)),
                received._replace(tags=sent.tags),
            )
        if ANY_SOURCE in received.ranks or ANY_TAG in received.tags:
            refuse_unknown_source(
                "a nonblocking receive with MPI.ANY_SOURCE or MPI.ANY_TAG",
                "where the message came from",
            )
        params = {
            **dict(flight.params),
            "sent": received,
            "received": sent,
            "is_marked": False,
        }
        return super().back(flight)._replace(params=tuple(params.items()))


class _Collective(Kind):
    """A collective operation on one array.

    What comes back of a cotangent is what the operation that blocks has: its result is in
    flight, so to speak, until the other half is transposed.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def attributes(self, flight: Flight) -> dict[str, Any]:
        # Only JAX's rules look at `shared`.
        lowered = ((name, value) for name, value in flight.params if name != "shared")
        return {name: np.int64(value) for name, value in lowered}

    def _params(self, flight: Flight) -> dict[str, Any]:
        return {**dict(flight.params), "communicator": flight.communicator}

    def batch_axes(self, flight: Flight) -> tuple[int, int]:
        return get_operation(self._name).batch_axes(**self._params(flight))

    def _is_linear(self, flight: Flight) -> bool:
        return dict(flight.params).get("op_number", SUM) == SUM

    def of_tangents(self, flight: Flight) -> Flight:
        return flight if self._is_linear(flight) else _held(flight)

    def push(
        self, flight: Flight, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Any, Any]:
        if self._is_linear(flight):
            return super().push(flight, primals, tangents)
        rule = ad.primitive_jvps[get_operation(self._name).primitive]
        results, pushed = rule(primals, tangents, **self._params(flight))
        held = _held(flight)
        return held.start(results), held.start(list(map(ad.instantiate_zeros, pushed)))

    def back(self, flight: Flight) -> Flight:
        return _held(flight)

    def pull(self, flight: Flight, came: Sequence[Any]) -> Sequence[Any]:
        rule = ad.primitive_transposes[get_operation(self._name).primitive]
        operand = ad.UndefinedPrimal(flight.sent[0])
        found: Sequence[Any] = rule(came, operand, **self._params(flight))
        return found


def _held(flight: Flight) -> Flight:
    """The results of an operation, held."""
    return Flight("hold", flight.communicator, flight.received, flight.received)


KINDS = {
    "hold": Kind(),
    "iallgather": _Collective("allgather"),
    "iallreduce": _Collective("allreduce"),
    "ialltoall": _Collective("alltoall"),
    "ibcast": _Collective("bcast"),
    "iexchange": _Exchange(),
}


# The two halves, as JAX knows them.


@makes_eager_calls
class _Half:
    """One half, as eager calls make it."""

    def __init__(self, primitive: VaryingPrimitive) -> None:
        self.name = primitive.name.removesuffix("_mpi")
        self._primitive = primitive
        primitive.def_impl(self._evaluate)

    def _evaluate(self, *operands: Any, **params: Any) -> Any:
        # Also under jax.disable_jit: an operation can only run compiled.
        with jax.disable_jit(False):
            return self._run(*operands, **params)

    def _run(self, *operands: Any, flight: Flight, **params: Any) -> Any:
        programs = flight.communicator.programs
        key = self, flight, *params.values()
        found = programs.get(key)
        if found is None:

            def run(*operands: Any) -> Any:
                return self._primitive.bind(*operands, flight=flight, **params)

            run.__name__ = self.name
            found = programs[key] = jax.jit(run)
        return found(*operands)


start_p = VaryingPrimitive("start_mpi")
wait_p = VaryingPrimitive("wait_mpi")
wait_p.multiple_results = True


def _type_of_start(*avals: Any, flight: Flight, may_be_lost: bool) -> Any:
    if "op_number" in dict(flight.params):
        check_reduction(flight.name, dict(flight.params)["op_number"], avals[0].dtype)
    return TICKET, {ordered_effect}


def _lower_start(ctx: Any, *operands: Any, flight: Flight, may_be_lost: bool) -> list[Any]:
    kind = flight.kind
    values, avals = kind.leaving(ctx, operands[: len(flight.sent)], flight)
    attributes = {
        "comm_number": np.int64(flight.communicator.number),
        "may_be_lost": np.int64(may_be_lost),
        **kind.attributes(flight),
    }
    envelopes = kind.envelopes(flight)
    # A call has each message: that which waits, if nothing comes.
    sent = envelopes._replace(received=()) if envelopes and envelopes.received else None
    return call_in_program(
        ctx,
        flight.name,
        values,
        attributes,
        sent,
        avals_in=avals,
        avals_out=[TICKET],
    )


def _push_start(primals: Any, tangents: Any, *, flight: Flight, may_be_lost: bool) -> Any:
    if not any(map(is_inexact, flight.sent + flight.received)):
        nothing = ad.Zero(TICKET)
        return flight.start(primals), nothing
    return flight.kind.push(flight, primals, tangents)


def _transpose_start(
    cotangent: Any, *operands: Any, flight: Flight, may_be_lost: bool
) -> list[Any]:
    back = flight.kind.back(flight)
    kept = [jnp.zeros(x.shape, x.dtype) for x in back.those_kept(back.received)]
    came = back.wait(ad.instantiate_zeros(cotangent), kept, may_be_zero=True)
    cotangents = list(flight.kind.pull(flight, came))
    # What stands for what comes has no part in it. `wait` is given that which stays.
    for x in operands[len(cotangents) :]:
        aval = x.aval if ad.is_undefined_primal(x) else None
        cotangents.append(None if aval is None else jnp.zeros(aval.shape, aval.dtype))
    pairs = zip(operands, cotangents, strict=True)
    return [ct if ad.is_undefined_primal(x) else None for x, ct in pairs]


def _batch_start(operands: Any, axes: Any, *, flight: Flight, may_be_lost: bool) -> Any:
    flight.kind.check_batch(flight, axes)
    axis, _ = flight.kind.batch_axes(flight)
    pairs = list(zip(operands, axes, strict=True))
    size = next(x.shape[n] for x, n in pairs if n is not None)
    moved = [batch_at(axis, size, x, n) for x, n in pairs]
    batched = flight.kind.batched(flight, size)
    ticket = batched.start(moved, may_be_lost=may_be_lost)
    return jnp.broadcast_to(ticket, (size, *ticket.shape)), 0


_Half(start_p)
start_p.def_effectful_abstract_eval(_type_of_start)
ad.primitive_jvps[start_p] = _push_start
ad.primitive_transposes[start_p] = _transpose_start
batching.primitive_batchers[start_p] = _batch_start
lower_everywhere(start_p, _lower_start)


def _type_of_wait(*avals: Any, flight: Flight, may_be_zero: bool) -> Any:
    return list(flight.received), {ordered_effect}


def _lower_wait(
    ctx: Any, ticket: Any, *kept: Any, flight: Flight, may_be_zero: bool
) -> list[Any]:
    attributes = {
        "comm_number": np.int64(flight.communicator.number),
        "may_be_zero": np.int64(may_be_zero),
        "started": np.int64(_core.NONBLOCKING.index(flight.name)),
    }
    kind = flight.kind
    envelopes = kind.envelopes(flight)
    received = (
        envelopes._replace(sent=()) if envelopes and envelopes.received else envelopes
    )
    came = call_in_program(
        ctx,
        "wait",
        [ticket],
        attributes,
        received,
        envelopes,
        avals_in=ctx.avals_in[:1],
        avals_out=kind.arriving(flight),
    )
    return kind.results(ctx, came, kept, flight)


def _push_wait(
    primals: Any, tangents: Any, *, flight: Flight, may_be_zero: bool
) -> tuple[Any, Any]:
    results = flight.wait(primals[0], primals[1:], may_be_zero=may_be_zero)
    ticket, *given = tangents
    of_tangents = flight.kind.of_tangents(flight)
    pairs = zip(given, primals[1:], strict=True)
    kept = [tangent for tangent, x in pairs if is_inexact(x)]
    if type(ticket) is ad.Zero:
        found = of_tangents.with_kept(kept, list(map(ad.Zero, of_tangents.received)))
    else:
        kept = list(map(ad.instantiate_zeros, kept))
        found = of_tangents.wait(ticket, kept, may_be_zero=True)
    return results, tangents_of(results, found)


def _transpose_wait(
    cotangents: Any, ticket: Any, *kept: Any, flight: Flight, may_be_zero: bool
) -> list[Any]:
    given = list(map(ad.instantiate_zeros, cotangents))
    back = flight.kind.back(flight)
    started = None
    if ad.is_undefined_primal(ticket):
        # Nobody waits for it if what has started this one was not differentiated.
        started = back.start(given, may_be_lost=True)
        started = _with_zeros(started, ticket.aval.shape)
    pairs = zip(kept, flight.those_kept(given), strict=True)
    return [started, *(ct if ad.is_undefined_primal(x) else None for x, ct in pairs)]


def _with_zeros(ticket: Any, shape: tuple[int, ...]) -> Any:
    """The cotangent of a ticket that all members of a batch have.

    JAX adds up the cotangents of the members: one has the ticket, and all others zeros.
    """
    *batch, size = shape
    ticket = jnp.reshape(ticket, (*(1 for _ in batch), size))
    config = [(0, members - 1, 0) for members in batch]
    return jax.lax.pad(ticket, np.float32(0), [*config, (0, 0, 0)])


def _batch_wait(operands: Any, axes: Any, *, flight: Flight, may_be_zero: bool) -> Any:
    ticket, *kept = operands
    if axes[0] is None:
        # One message for all members, of which only what stays differs.
        members = [
            x if n is None else jax.lax.index_in_dim(x, 0, n, keepdims=False)
            for x, n in zip(kept, axes[1:], strict=True)
        ]
        results = flight.wait(ticket, members, may_be_zero=may_be_zero)
        given = flight.with_kept(kept, results)
        return given, flight.with_kept(axes[1:], [None] * len(results))
    size = ticket.shape[axes[0]]
    batched = flight.kind.batched(flight, size)
    _, axis = flight.kind.batch_axes(flight)
    moved = [batch_at(axis, size, x, n) for x, n in zip(kept, axes[1:], strict=True)]
    ticket = jnp.moveaxis(ticket, axes[0], 0)
    results = batched.wait(ticket, moved, may_be_zero=may_be_zero)
    return results, [axis] * len(results)


_Half(wait_p)
wait_p.def_effectful_abstract_eval(_type_of_wait)
ad.primitive_jvps[wait_p] = _push_wait
ad.primitive_transposes[wait_p] = _transpose_wait
batching.primitive_batchers[wait_p] = _batch_wait
lower_everywhere(wait_p, _lower_wait)


# What users see of it.


@jax.tree_util.register_pytree_node_class
class Request(Generic[T]):
    """A nonblocking operation that has been started. :func:`wait` completes it.

    A pytree, which can pass through jit, loops and branches: an iteration of a loop may
    wait for what the previous one started.
    """

    def __init__(self, ticket: Any, kept: Sequence[Any], what: tuple[Flight, Any]) -> None:
        self._ticket = ticket
        self._kept = kept
        self._flight, self._structure = what

    def __repr__(self) -> str:
        return f"<Request: {self._flight.name}>"

    def tree_flatten(self) -> tuple[tuple[Any, Sequence[Any]], tuple[Flight, Any]]:
        return (self._ticket, self._kept), (self._flight, self._structure)

    @classmethod
    def tree_unflatten(cls, what: tuple[Flight, Any], children: Any) -> Request[T]:
        ticket, kept = children
        return cls(ticket, kept, what)

    def _wait(self) -> T:
        found = self._flight.wait(self._ticket, self._kept, may_be_zero=False)
        value: T = jax.tree_util.tree_unflatten(self._structure, found)
        return value


def start(
    flight: Flight,
    operands: Sequence[Array],
    structure: Any,
    room: Sequence[Array] = (),
) -> Request[Any]:
    """Start an operation for a user.

    Arguments:
        flight: What it is.
        operands: What is sent.
        structure: The tree of what comes.
        room: The leaves of the tree that stands for what comes in messages.

    """
    prepare()
    for aval in flight.sent + flight.received:
        check_dtype(flight.name, "x", aval.dtype)
    ticket = flight.start([*operands, *room])
    if trace_state_clean():
        set_line(ticket, call_sites.frames_of(sys._getframe()))
    return Request(ticket, flight.those_kept(room), (flight, structure))


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


def exchange_flight(
    function: str,
    communicator: Communicator,
    sent_types: Types,
    received_types: Types,
    sent: Messages,
    received: Messages,
    *,
    is_marked: bool = False,
) -> Flight:
    """Messages with arrays of such types, for a function that the user has called."""
    params = {
        "function": function,
        "sent": sent,
        "received": received,
        "is_marked": is_marked,
    }
    types = sent_types, received_types
    return Flight("iexchange", communicator, *types, tuple(params.items()))


def collective_flight(
    name: str, x: ShapedArray, communicator: Communicator, **params: int
) -> Flight:
    """A collective operation on an array of such a type."""
    received = x
    if name == "iallgather":
        received = ShapedArray((communicator.size, *x.shape), x.dtype)
    return Flight(name, communicator, (x,), (received,), tuple(params.items()))


@functools.cache
def prepare() -> None:
    """Have a thread see to what is in flight, and have what is left of it reported."""
    is_possible = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
    _core.set_pushing(settings.progress_thread and is_possible)
    atexit.register(_finish)


#: At the end of a program, what nobody has waited for gets so many seconds.
_PATIENCE = 0.5
#: Of so many lines.
_MOST_NAMED = 20


def _finish() -> None:
    with contextlib.suppress(Exception):  # that of a program, which was raised before
        flush()
    left = _core.finish_flights(_PATIENCE)
    if not left:
        return
    requests = "1 request was" if len(left) == 1 else f"{len(left)} requests were"
    text = [f"mpi4jax: r{MPI.COMM_WORLD.Get_rank()} | {requests} never waited for"]
    described = Counter(
        what if is_done else f"{what}, which is still in flight" for what, is_done in left
    )
    for what, number in itertools.islice(described.items(), _MOST_NAMED):
        text.append(f"  {what}" if number == 1 else f"  {what} ({number} times)")
    if len(described) > _MOST_NAMED:
        text.append(f"  and others, at {len(described) - _MOST_NAMED} more lines")
    print("\n".join(text), file=sys.stderr)
