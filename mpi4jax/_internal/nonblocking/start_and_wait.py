"""The two primitives of nonblocking operations: one starts, and one waits.

Arrays in flight belong to the core: XLA may reuse a program's memory as soon as a handler
has returned. A program holds a *ticket*, two floats by which the core finds these arrays.
All else is known when the program is compiled: the :class:`Flight`. Tickets are floats so
that JAX differentiates them like any array.

Why start and wait are linear, and transposes of each other. Let a blocking operation
compute y = A x, with x and y for the arrays of all processes together. Think of a ticket t
as an element of the space of results, for which it stands:

    start: x -> t = A x                 wait: t -> y = t

Both are linear if A is, so tangents of x have a ticket of their own, and are waited for
where the result is waited for. The transposed composition has to compute A^T from a
cotangent of y:

    wait^T:  y' -> t'                   start^T: t' -> x' = A^T t'

wait^T comes first in a reversed program, and gives a ticket; start^T takes it, and gives
an array. So wait^T is a start, and start^T is a wait, and what is between the two in a
program is between the two in its derivative, where it is computed while messages are in
flight. There are two ways to share the work of A^T:

- Messages (:class:`~.flights.ExchangeFlight`): A is a permutation of arrays among
  processes, and A^T its inverse. wait^T starts the messages back, and start^T waits for
  them.
- Collective operations (:class:`~.flights.CollectiveFlight`): A^T is whatever the
  transposition of the blocking operation says: several operations, none, or arithmetic.
  wait^T only *holds* the cotangent (:class:`~.flights.HeldFlight`, an identity), and
  start^T applies A^T to what was held. The ticket is in between, as JAX wants a cotangent
  like t there.

Where a process has its result from an operand and not from MPI (root of a broadcast; a
receive from MPI.PROC_NULL), that array is *forwarded*: a further operand k of wait. There
y = k + 0 t, so wait^T gives y' to k, and zeros to the ticket. If the program computes the
source, y is either k or t when it runs. So the ranks that it computes are one more operand
of both, the last one, which has no derivative.

JAX may add zeros to a ticket that is a cotangent, which changes nothing: a ticket is added
to nothing but zeros, as a request is waited for once.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mpi4jax import _core
from mpi4jax._override import override

from ..arguments.dtypes import DATATYPES
from ..arguments.types import Array
from ..mpi.handles import Communicator
from ..operations._batching import batch_at, batch_size
from ..operations._checkpoint import keep_complex_results
from ..operations._computed import where_null
from ..operations._eager import evaluate, run_eagerly, run_on_line
from ..operations._lowering import Attributes, call_in_program, lower_everywhere
from ..operations._transposes import (
    Jvp,
    Operand,
    array_or_aval,
    cotangents_of,
    instantiated,
    is_inexact,
    known,
    tangents_of,
)
from ..xla.call_sites import Envelopes
from ..xla.dependence import zeros_after
from ..xla.effects import ordered_effect
from ..xla.jax_compat import (
    Effect,
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    VaryingPrimitive,
    ad,
    batching,
    trace_state_clean,
    vary,
    vary_like,
)

#: The type of a ticket: its index in the core's table, and a mark of the process.
TICKET = ShapedArray((2,), np.dtype(np.float32))

Avals = tuple[ShapedArray, ...]

X = TypeVar("X")
Y = TypeVar("Y")


class Flight(Protocol):
    """Description of an operation in flight, known when a program is compiled.

    The rules of start and wait call its methods. Instances are parameters of primitives:
    they compare and hash by their content.
    """

    @property
    def communicator(self) -> Communicator: ...

    @property
    def handler(self) -> str:
        """The name of the handler that starts the operation, one of `_core.NONBLOCKING`."""

    @property
    def function(self) -> str:
        """The user's function that started the operation, for errors."""

    @property
    def operands(self) -> Avals:
        """The types of start's operands. Some only lend their shape, as in a receive."""

    @property
    def number_count(self) -> int:
        """The number of operands of computed ranks that start and wait have: 0 or 1."""

    @property
    def results(self) -> Avals:
        """The types of wait's results."""

    @property
    def forwarded(self) -> tuple[int | None, ...]:
        """For each result, the index of the operand that may be the result, or None."""

    @property
    def computed_sources(self) -> tuple[int | None, ...]:
        """For each result, the parameter of a sender's rank that the program computes.

        The result is the forwarded operand if that rank is MPI.PROC_NULL. None for results
        without such a rank.
        """

    @property
    def batch_axes(self) -> tuple[int, int]:
        """The axes of operands and results at which a message has a batch."""

    def check(self) -> None:
        """Raise TypeError if MPI does not take arrays of these types."""

    # In a compiled program.

    def lower_operands(
        self, ctx: LoweringContext, operands: Sequence[Value]
    ) -> tuple[list[Value], list[ShapedArray]]:
        """The operands of the handler that starts, and their types."""

    def attributes(self) -> Attributes:
        """The attributes of the handler that starts."""

    def envelopes(self) -> Envelopes | None:
        """The messages that are sent and received, if the operation has several."""

    def arrivals(self) -> list[ShapedArray]:
        """The types of the arrays that the core holds when all messages have arrived."""

    def lower_results(
        self, ctx: LoweringContext, arrived: Sequence[Value], wait_operands: Sequence[Value]
    ) -> list[Value]:
        """The results of wait, from the arrays that have arrived and wait's operands."""

    # In JAX's transformations.

    def invariant_axes(self) -> Sequence[Hashable]:
        """The axes of a mesh along which the results are the same on all processes."""

    def batched(self, size: int) -> Flight:
        """The flight of a batch of `size` members, as one operation."""

    def check_batch(self, axes: Sequence[int | None]) -> None:
        """Raise RuntimeError if a batch at these axes of the operands has no meaning."""

    def for_tangents(self) -> Flight:
        """The flight of the tangents. Integers have none."""

    def push(
        self, primals: Sequence[Array], tangents: Sequence[Tangent]
    ) -> tuple[Array, Array]:
        """Start the operation for arrays and for their tangents. Returns two tickets."""

    def for_cotangents(self) -> Flight:
        """The flight of the cotangents, from wait^T to start^T."""

    def pull(
        self, cotangents: Sequence[Array], operands: Sequence[Operand]
    ) -> Sequence[Array | None]:
        """The cotangents of the operands, from the arrays that start^T has waited for."""


class _Start(NamedTuple):
    """An eager start, which is a program of its own."""

    flight: Flight
    may_be_lost: bool
    name: str = "start"

    @property
    def communicator(self) -> Communicator:
        return self.flight.communicator

    def call_in_program(self, *operands: Array) -> Array:
        return start_p.bind(*operands, flight=self.flight, may_be_lost=self.may_be_lost)

    def forwarded_operand(self) -> None:
        return None


class _Wait(NamedTuple):
    """An eager wait, which is a program of its own."""

    flight: Flight
    may_be_zero: bool
    name: str = "wait"

    @property
    def communicator(self) -> Communicator:
        return self.flight.communicator

    def call_in_program(self, *operands: Array) -> list[Array]:
        return wait_p.bind(*operands, flight=self.flight, may_be_zero=self.may_be_zero)

    def forwarded_operand(self) -> None:
        return None


def bind_start(
    flight: Flight, operands: Sequence[Array], *, may_be_lost: bool = False
) -> Array:
    """The ticket of an operation with these operands.

    A cotangent `may_be_lost`: nobody waits for it where what has started the primal
    operation was not differentiated.
    """
    # Where nothing is traced, without the detour by JAX's `bind`.
    if trace_state_clean():
        ticket: Array = run_eagerly(_Start(flight, may_be_lost), operands)
        return ticket
    operands = _varying(flight, operands)
    return start_p.bind(*operands, flight=flight, may_be_lost=may_be_lost)


def bind_wait(
    flight: Flight,
    ticket: Array,
    wait_operands: Sequence[Array],
    *,
    may_be_zero: bool,
    line: str = "",
) -> list[Array]:
    """The results for a ticket.

    A ticket that `may_be_zero` has results of zero if it is: a tangent or a cotangent of an
    operation that was not differentiated. `wait_operands` are :func:`operands_of_wait`.
    Reports show an eager wait on the line, if there is one.
    """
    operands: Sequence[Array] = (ticket, *wait_operands)
    if trace_state_clean():
        call = _Wait(flight, may_be_zero)
        if line:
            return run_on_line(line, call, operands) or []
        return run_eagerly(call, operands) or []
    operands = _varying(flight, operands)
    return wait_p.bind(*operands, flight=flight, may_be_zero=may_be_zero)


def _varying(flight: Flight, operands: Sequence[Array]) -> Sequence[Array]:
    """The operands, which vary along the axes of a mesh."""
    axes = flight.communicator.axes
    return [vary(x, axes) for x in operands] if axes else operands


def split_numbers(flight: Flight, operands: Sequence[X]) -> tuple[Sequence[X], Sequence[X]]:
    """The array operands of start or wait, and the operand of computed ranks, if any."""
    array_count = len(operands) - flight.number_count
    return operands[:array_count], operands[array_count:]


def _known_numbers(flight: Flight, operands: Sequence[Operand]) -> list[Array]:
    """The operand of computed ranks, if any, of a call that is transposed by the others."""
    _, numbers = split_numbers(flight, operands)
    return known(numbers)


def is_forwarded(flight: Flight) -> list[bool]:
    """For each result, whether it is or may be an operand of wait."""
    return [operand is not None for operand in flight.forwarded]


def operands_of_wait(flight: Flight, operands: Sequence[X]) -> list[X]:
    """The operands of start that wait takes as well."""
    _, numbers = split_numbers(flight, operands)
    forwarded = [operands[index] for index in flight.forwarded if index is not None]
    return [*forwarded, *numbers]


def forwarded_results(flight: Flight, results: Sequence[X]) -> list[X]:
    """The results of wait that are or may be operands of it."""
    return list(itertools.compress(results, is_forwarded(flight)))


def merge(flight: Flight, forwarded: Sequence[X], others: Sequence[Y]) -> list[X | Y]:
    """For each result the next of `forwarded` if it is forwarded, else its other value."""
    remaining = iter(forwarded)
    pairs = zip(others, is_forwarded(flight), strict=True)
    return [next(remaining) if is_one else other for other, is_one in pairs]


class _WaitPrimitive(VaryingPrimitive[list[Array]]):
    """The primitive wait. Its results may be the same along axes where tickets vary."""

    @override
    def invariant_axes(self, **params: Any) -> Sequence[Hashable]:
        flight: Flight = params["flight"]
        return flight.invariant_axes()


start_p: VaryingPrimitive[Array] = VaryingPrimitive("start_mpi")
wait_p = _WaitPrimitive("wait_mpi")
wait_p.multiple_results = True
keep_complex_results(wait_p)


def _evaluate_start(*operands: Array, flight: Flight, may_be_lost: bool) -> Array:
    ticket: Array = evaluate(_Start(flight, may_be_lost), operands)
    return ticket


def _evaluate_wait(*operands: Array, flight: Flight, may_be_zero: bool) -> list[Array]:
    return evaluate(_Wait(flight, may_be_zero), operands) or []


start_p.def_impl(_evaluate_start)
wait_p.def_impl(_evaluate_wait)


def _start_type(
    *avals: ShapedArray, flight: Flight, may_be_lost: bool
) -> tuple[ShapedArray, set[Effect]]:
    flight.check()
    flight.communicator.check_mesh(flight.handler)
    return TICKET, {ordered_effect}


def _lower_start(
    ctx: LoweringContext, *operands: Value, flight: Flight, may_be_lost: bool
) -> list[Value]:
    values, avals = flight.lower_operands(ctx, operands)
    attributes = {
        **flight.attributes(),
        "arrays": np.array(list(map(_type_and_size, flight.arrivals())), np.int64).ravel(),
        "comm_number": np.int64(flight.communicator.number),
        "may_be_lost": np.int64(may_be_lost),
    }
    envelopes = flight.envelopes()
    flight.communicator.has_messages |= envelopes is not None
    # A message belongs to the call that waits for it, if there is a choice.
    sent = envelopes._replace(received=()) if envelopes and envelopes.received else None
    return call_in_program(
        ctx,
        flight.communicator,
        flight.handler,
        values,
        attributes,
        sent,
        is_computed=bool(flight.number_count),
        avals_in=avals,
        avals_out=[TICKET],
    )


def _type_and_size(aval: ShapedArray) -> tuple[int, int]:
    """The code of a type and the number of elements, for arrays unlike start's operands."""
    code, _ = DATATYPES[str(aval.dtype)]
    return code, aval.size


def _push_start(
    primals: Sequence[Array],
    tangents: Sequence[Tangent],
    *,
    flight: Flight,
    may_be_lost: bool,
) -> tuple[Array, Tangent]:
    if not any(map(is_inexact, flight.operands + flight.results)):
        return bind_start(flight, primals), ad.Zero(TICKET)
    return flight.push(primals, tangents)


def _transpose_start(
    cotangent: Tangent, *operands: Operand, flight: Flight, may_be_lost: bool
) -> list[Array | None]:
    returning = flight.for_cotangents()
    numbers = _known_numbers(returning, operands)
    forwarded = [
        jnp.zeros(x.shape, x.dtype) for x in forwarded_results(returning, returning.results)
    ]
    arrived = bind_wait(
        returning,
        ad.instantiate_zeros(cotangent),
        [*forwarded, *numbers],
        may_be_zero=True,
    )
    pairs = zip(operands, flight.pull(arrived, operands), strict=True)
    # On a mesh, operands may vary over more axes than the communicator's.
    return cotangents_of(
        operands, (ct if ct is None else vary_like(ct, array_or_aval(x)) for x, ct in pairs)
    )


def _batch_start(
    operands: Sequence[Array],
    axes: Sequence[int | None],
    *,
    flight: Flight,
    may_be_lost: bool,
) -> tuple[Array, int]:
    flight.check_batch(axes)
    arrays, numbers = split_numbers(flight, operands)
    if any(axis is not None for axis in axes[len(arrays) :]):
        raise NotImplementedError(
            f"{flight.function} was mapped by jax.vmap over a rank that the program "
            "computes, expected one for all members of the batch, which are one message"
        )
    array_axes = axes[: len(arrays)]
    size = batch_size(arrays, array_axes)
    axis, _ = flight.batch_axes
    moved = batch_at(axis, arrays, array_axes, size)
    batched = flight.batched(size)
    ticket = bind_start(batched, [*moved, *numbers], may_be_lost=may_be_lost)
    return jnp.broadcast_to(ticket, (size, *ticket.shape)), 0


start_p.def_effectful_abstract_eval(_start_type)
ad.primitive_jvps[start_p] = _push_start
ad.primitive_transposes[start_p] = _transpose_start
batching.primitive_batchers[start_p] = _batch_start
lower_everywhere(start_p, _lower_start)


def _wait_type(
    ticket: ShapedArray, *wait_operands: ShapedArray, flight: Flight, may_be_zero: bool
) -> tuple[list[ShapedArray], set[Effect]]:
    forwarded, _ = split_numbers(flight, wait_operands)
    expected = [TICKET, *forwarded_results(flight, flight.results)]
    # The ticket of a batch has more axes.
    shapes = [ticket.shape[-1:], *(x.shape for x in forwarded)]
    for aval, shape, each in zip((ticket, *forwarded), shapes, expected, strict=True):
        if (shape, aval.dtype) != (each.shape, each.dtype):
            raise TypeError(
                f"wait got a request that was changed: it has {aval.str_short()} where "
                f"{flight.function} gave {each.str_short()}. Requests, also those in a "
                "tree, can be passed on and copied, but not converted or computed with"
            )
    return list(flight.results), {ordered_effect}


def _lower_wait(
    ctx: LoweringContext,
    ticket: Value,
    *wait_operands: Value,
    flight: Flight,
    may_be_zero: bool,
) -> list[Value]:
    attributes = {
        "comm_number": np.int64(flight.communicator.number),
        "may_be_zero": np.int64(may_be_zero),
        "started": np.int64(_core.NONBLOCKING.index(flight.handler)),
    }
    envelopes = flight.envelopes()
    received = envelopes and (
        envelopes._replace(sent=()) if envelopes.received else envelopes
    )
    # Reports name the messages, some of which have computed ranks.
    _, numbers = split_numbers(flight, wait_operands if envelopes else [])
    _, types = split_numbers(flight, ctx.avals_in)
    arrived = call_in_program(
        ctx,
        flight.communicator,
        "wait",
        [ticket, *numbers],
        attributes,
        received,
        envelopes,
        is_computed=bool(numbers),
        avals_in=[ctx.avals_in[0], *types[: len(numbers)]],
        avals_out=flight.arrivals(),
    )
    return flight.lower_results(ctx, arrived, wait_operands)


def _push_wait(
    primals: Sequence[Array],
    tangents: Sequence[Tangent],
    *,
    flight: Flight,
    may_be_zero: bool,
) -> Jvp:
    ticket, *wait_operands = primals
    results = bind_wait(flight, ticket, wait_operands, may_be_zero=may_be_zero)
    if not any(map(is_inexact, results)):
        return results, tangents_of(results, ())
    ticket_tangent, *wait_tangents = tangents
    pushed = flight.for_tangents()
    pairs = zip(wait_tangents, wait_operands, strict=True)
    # Numbers have no tangents.
    forwarded_tangents = [tangent for tangent, x in pairs if is_inexact(x)]
    if isinstance(ticket_tangent, ad.Zero) and not any(pushed.computed_sources):
        zeros = list(map(ad.Zero, pushed.results))
        return results, tangents_of(results, merge(pushed, forwarded_tangents, zeros))
    _, numbers = split_numbers(pushed, wait_operands)
    arrived = bind_wait(
        pushed,
        ad.instantiate_zeros(ticket_tangent),
        [*instantiated(forwarded_tangents), *numbers],
        may_be_zero=True,
    )
    return results, tangents_of(results, arrived)


def _transpose_wait(
    cotangents: Sequence[Tangent],
    ticket: Operand,
    *wait_operands: Operand,
    flight: Flight,
    may_be_zero: bool,
) -> list[Array | None]:
    cotangents = instantiated(cotangents)
    ticket_cotangent = None
    forwarded, _ = split_numbers(flight, wait_operands)
    numbers = _known_numbers(flight, wait_operands)
    if isinstance(ticket, ad.UndefinedPrimal):
        returning = flight.for_cotangents()
        # These zeros depend on the cotangents: JAX has to transpose this start, too. What
        # is sent to nobody need not be zeros.
        parts = [
            ct if operand is None or source is not None else zeros_after(ct)
            for ct, operand, source in zip(
                cotangents, flight.forwarded, flight.computed_sources, strict=True
            )
        ]
        parts += numbers[: returning.number_count]
        started = bind_start(returning, parts, may_be_lost=True)
        ticket_cotangent = _with_zeros(started, ticket.aval.shape)
    forwarded_cotangents = [
        ct if source is None else where_null(source, numbers, ct, jnp.zeros_like(ct))
        for ct, source in forwarded_results(
            flight, list(zip(cotangents, flight.computed_sources, strict=True))
        )
    ]
    # Results may be the same along axes of a mesh, along which all operands vary.
    forwarded_cotangents = list(_varying(flight, forwarded_cotangents))
    return [
        ticket_cotangent,
        *cotangents_of(forwarded, forwarded_cotangents),
        *(None for _ in numbers),
    ]


def _with_zeros(ticket: Array, shape: tuple[int, ...]) -> Array:
    """The cotangent of a ticket that is common to all members of a batch.

    JAX adds up the cotangents of the members: one has the ticket, and all others zeros.
    """
    *batch, size = shape
    ticket = jnp.reshape(ticket, (*(1 for _ in batch), size))
    config = [(0, members - 1, 0) for members in batch]
    return jax.lax.pad(ticket, np.float32(0), [*config, (0, 0, 0)])


def _batch_wait(
    operands: Sequence[Array],
    axes: Sequence[int | None],
    *,
    flight: Flight,
    may_be_zero: bool,
) -> tuple[list[Array], list[int | None]]:
    ticket, *wait_operands = operands
    ticket_axis, *wait_axes = axes
    forwarded, numbers = split_numbers(flight, wait_operands)
    forwarded_axes, axes_of_numbers = split_numbers(flight, wait_axes)
    assert not any(axis is not None for axis in axes_of_numbers), "refused at the start"
    if ticket_axis is None:
        # One message for all members, of which only what is forwarded differs.
        members = [
            x if axis is None else jax.lax.index_in_dim(x, 0, axis, keepdims=False)
            for x, axis in zip(forwarded, forwarded_axes, strict=True)
        ]
        operands = [*members, *numbers]
        results = bind_wait(flight, ticket, operands, may_be_zero=may_be_zero)
        merged = merge(flight, forwarded, results)
        result_axes = merge(flight, forwarded_axes, [None] * len(results))
        for n, (source, batch_axis) in enumerate(
            zip(flight.computed_sources, result_axes, strict=True)
        ):
            if source is not None and batch_axis is not None:
                batch = jnp.moveaxis(merged[n], batch_axis, 0)
                merged[n] = where_null(source, numbers, batch, results[n][None])
                result_axes[n] = 0
            elif source is not None:
                merged[n] = results[n]
        return merged, result_axes
    size = ticket.shape[ticket_axis]
    _, axis = flight.batch_axes
    forwarded = batch_at(axis, forwarded, forwarded_axes, size)
    ticket = jnp.moveaxis(ticket, ticket_axis, 0)
    operands = [*forwarded, *numbers]
    results = bind_wait(flight.batched(size), ticket, operands, may_be_zero=may_be_zero)
    return results, [axis] * len(results)


wait_p.def_effectful_abstract_eval(_wait_type)
ad.primitive_jvps[wait_p] = _push_wait
ad.primitive_transposes[wait_p] = _transpose_wait
batching.primitive_batchers[wait_p] = _batch_wait
lower_everywhere(wait_p, _lower_wait)
