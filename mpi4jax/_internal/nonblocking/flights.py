"""Flights: messages, collective operations, and results that are held by the core."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp

from mpi4jax import _core
from mpi4jax._override import override

from ..arguments.dtypes import carrier_aval, check_dtype
from ..arguments.types import Array
from ..mpi.handles import NO_STATUS, Communicator
from ..operations._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    dest_rank,
    refuse_derivative,
    refuse_unknown_source,
)
from ..operations._calls import ReceivingOperation
from ..operations._computed import is_computed
from ..operations._lowering import Attributes
from ..operations._messages import (
    Messages,
    message_attributes,
    message_avals,
    pack_messages,
    unpack_messages,
)
from ..operations._operation import Operation
from ..operations._rules import transpose
from ..operations._transposes import (
    Operand,
    array_or_aval,
    inexact_tangents,
    instantiated,
    is_inexact,
)
from ..operations.sendrecv import SendRecv, check_batch_of_tangents, mark_of
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import (
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    convert,
    varying_axes,
)
from .start_and_wait import Avals, Flight, bind_start, merge, split_numbers


def _with_batch(avals: Sequence[ShapedArray], axis: int, size: int) -> Avals:
    return tuple(
        ShapedArray((*x.shape[:axis], size, *x.shape[axis:]), x.dtype) for x in avals
    )


@dataclasses.dataclass(frozen=True)
class _HashedOnce:
    """Base of frozen dataclasses that compute their hash once: each eager call needs it."""

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, x.name) for x in dataclasses.fields(self)))

    @override
    def __hash__(self) -> int:
        return self._hash


@dataclasses.dataclass(frozen=True)
class ExchangeFlight(_HashedOnce):
    """Any number of messages (MPI-4.1 §3.7), with what the blocking form allows.

    The operands are the arrays to send, and then arrays like the received ones. The latter
    are not read, but differentiated and mapped over, as in the blocking operation.
    Cotangents have none of them.
    """

    communicator: Communicator
    function: str
    sent: Messages
    received: Messages
    send_avals: Avals
    recv_avals: Avals
    #: Whether only one end of the message is known (:class:`Operation`).
    is_one_sided: bool
    #: Whether tangents come with a mark of the arrays (:func:`mark_of`).
    marks_tangents: bool
    #: Whether these are tangents, of which the last operand is the arrays' mark.
    is_marked: bool = False

    handler = "iexchange"
    batch_axes = (0, 0)
    __hash__ = _HashedOnce.__hash__

    @property
    def operands(self) -> Avals:
        return self.send_avals + self.recv_avals

    @functools.cached_property
    def number_count(self) -> int:
        return int(any(map(is_computed, (*self.sent.ranks, *self.received.ranks))))

    @property
    def results(self) -> Avals:
        return self.recv_avals

    @functools.cached_property
    def forwarded(self) -> tuple[int | None, ...]:
        first = len(self.send_avals)
        return tuple(
            first + index if rank == PROC_NULL or is_computed(rank) else None
            for index, rank in enumerate(self.received.ranks_of_leaves())
        )

    @functools.cached_property
    def computed_sources(self) -> tuple[int | None, ...]:
        ranks = self.received.ranks_of_leaves()
        return tuple(rank if is_computed(rank) else None for rank in ranks)

    def invariant_axes(self) -> tuple[()]:
        return ()

    def check(self) -> None:
        for aval in self.operands:
            check_dtype(self.function, "x", aval.dtype)
        for rank in self.sent.ranks:  # `send` leaves some of the ranks to MPI
            if not is_computed(rank):
                dest_rank(self.function, "dest", rank, self.communicator)

    def lower_operands(
        self, ctx: LoweringContext, operands: Sequence[Value]
    ) -> tuple[list[Value], list[ShapedArray]]:
        arrays, avals = pack_messages(ctx, self.sent, operands[: len(self.send_avals)])
        _, numbers = split_numbers(self, operands)
        _, types = split_numbers(self, ctx.avals_in)
        return [*arrays, *numbers], [*avals, *types]

    def attributes(self) -> Attributes:
        return message_attributes(self.communicator, self.sent, self.received)

    def envelopes(self) -> Envelopes:
        return Envelopes(
            self.sent.envelopes(self.send_avals), self.received.envelopes(self.recv_avals)
        )

    def arrivals(self) -> list[ShapedArray]:
        return message_avals(self.received, self.recv_avals)

    def lower_results(
        self, ctx: LoweringContext, arrived: Sequence[Value], wait_operands: Sequence[Value]
    ) -> list[Value]:
        forwarded, numbers = split_numbers(self, wait_operands)
        merged = merge(self, forwarded, [None] * len(self.recv_avals))
        return unpack_messages(ctx, self.received, arrived, merged, numbers)

    def batched(self, size: int) -> ExchangeFlight:
        return dataclasses.replace(
            self,
            send_avals=_with_batch(self.send_avals, 0, size),
            recv_avals=_with_batch(self.recv_avals, 0, size),
        )

    def check_batch(self, axes: Sequence[int | None]) -> None:
        if self.is_marked:
            array_axes, _ = split_numbers(self, axes)
            check_batch_of_tangents(self.function, array_axes[-1])

    def for_tangents(self) -> ExchangeFlight:
        return dataclasses.replace(
            self,
            sent=self.sent.select(list(map(is_inexact, self.send_avals))),
            received=self.received.select(list(map(is_inexact, self.recv_avals))),
            send_avals=tuple(filter(is_inexact, self.send_avals)),
            recv_avals=tuple(filter(is_inexact, self.recv_avals)),
            is_marked=self.marks_tangents,
        )

    def push(
        self, primals: Sequence[Array], tangents: Sequence[Tangent]
    ) -> tuple[Array, Array]:
        if self.is_one_sided:
            refuse_derivative(self.function)
        arrays, numbers = split_numbers(self, primals)
        on_tangents = self.for_tangents()
        pushed = inexact_tangents(primals, tangents)
        if self.marks_tangents:
            pushed.append(arrays[-1] if self.is_marked else mark_of(arrays))
        pushed += numbers[: on_tangents.number_count]
        return bind_start(self, primals), bind_start(on_tangents, pushed)

    def for_cotangents(self) -> ExchangeFlight:
        if self.is_one_sided:
            refuse_derivative(self.function)
        sent, received = self.sent, self.received
        if len(sent.ranks) == len(received.ranks) == 1 and received.tags == (ANY_TAG,):
            # As in sendrecv: only the sender knows the tag.
            sent, received = (
                sent._replace(tags=(ANY_TAG,)),
                received._replace(tags=sent.tags),
            )
        if ANY_SOURCE in received.ranks or ANY_TAG in received.tags:
            refuse_unknown_source(
                "a nonblocking receive with MPI.ANY_SOURCE or MPI.ANY_TAG",
                "where the message came from",
            )
        return dataclasses.replace(
            self,
            sent=received,
            received=sent,
            send_avals=self.recv_avals,
            recv_avals=self.send_avals,
            is_marked=False,
        )

    def pull(
        self, cotangents: Sequence[Array], operands: Sequence[Operand]
    ) -> Sequence[Array | None]:
        # Arrays like the received ones get zeros: wait takes the forwarded operands.
        avals = map(array_or_aval, operands[len(cotangents) :])
        return [*cotangents, *(jnp.zeros(x.shape, x.dtype) for x in avals)]


@dataclasses.dataclass(frozen=True)
class CollectiveFlight(_HashedOnce):
    """A collective operation (MPI-4.1 §6.12), described by its declaration alone."""

    operation: Operation
    operands: Avals

    __hash__ = _HashedOnce.__hash__

    @property
    def communicator(self) -> Communicator:
        return self.operation.communicator

    @property
    def handler(self) -> str:
        return f"i{self.operation.name}"

    @property
    def function(self) -> str:
        return self.handler

    @functools.cached_property
    def number_count(self) -> int:
        return int(self.operation.is_computed)

    @functools.cached_property
    def _forwarded(self) -> int | None:
        return self.operation.forwarded_operand()

    @functools.cached_property
    def results(self) -> Avals:
        return tuple(self.operation.result_avals(*self.operands))

    @functools.cached_property
    def forwarded(self) -> tuple[int | None, ...]:
        return (self._forwarded,) * len(self.results)

    @functools.cached_property
    def computed_sources(self) -> tuple[None, ...]:
        return (None,) * len(self.results)

    def invariant_axes(self) -> Sequence[Hashable]:
        return self.operation.invariant_axes()

    @functools.cached_property
    def batch_axes(self) -> tuple[int, int]:
        return self.operation.batch_axes()

    def check(self) -> None:
        self.operation.check_avals(self.function, *self.operands)

    @property
    def _read(self) -> list[ShapedArray]:
        """The operands that the handler gets."""
        return list(map(carrier_aval, self.operands[: self.operation.read_operands()]))

    def lower_operands(
        self, ctx: LoweringContext, operands: Sequence[Value]
    ) -> tuple[list[Value], list[ShapedArray]]:
        avals = self._read
        _, numbers = split_numbers(self, operands)
        _, types = split_numbers(self, ctx.avals_in)
        return [*map(convert, operands, avals), *numbers], [*avals, *types]

    def attributes(self) -> Attributes:
        return self.operation.attributes()

    def envelopes(self) -> Envelopes | None:
        return self.operation.envelopes(*self._read)

    def arrivals(self) -> list[ShapedArray]:
        aval = self.operation.aval_in_flight(*self.operands)
        return [] if aval is None else [carrier_aval(aval)]

    def lower_results(
        self, ctx: LoweringContext, arrived: Sequence[Value], wait_operands: Sequence[Value]
    ) -> list[Value]:
        if self._forwarded is not None:
            forwarded, _ = split_numbers(self, wait_operands)
            return list(forwarded)
        return self.operation.lower_results(ctx, arrived, self.results)

    def batched(self, size: int) -> CollectiveFlight:
        arrays, numbers = split_numbers(self, self.operands)
        batched = *_with_batch(arrays, self.batch_axes[0], size), *numbers
        return dataclasses.replace(self, operands=batched)

    def check_batch(self, axes: Sequence[int | None]) -> None:
        self.operation.check_batch(axes)

    def for_tangents(self) -> Flight:
        return self if self.operation.is_linear else HeldFlight(self)

    def push(
        self, primals: Sequence[Array], tangents: Sequence[Tangent]
    ) -> tuple[Array, Array]:
        if self.operation.is_linear:
            arrays, numbers = split_numbers(self, primals)
            pushed = [*instantiated(tangents[: len(arrays)]), *numbers]
            return bind_start(self, primals), bind_start(self, pushed)
        results, result_tangents = self.operation.jvp(primals, tangents)
        pushed = instantiated(result_tangents)
        held = HeldFlight(self)
        return bind_start(held, results), bind_start(held, pushed)

    def for_cotangents(self) -> HeldFlight:
        return HeldFlight(self)

    def pull(
        self, cotangents: Sequence[Array], operands: Sequence[Operand]
    ) -> Sequence[Array | None]:
        return transpose(cotangents, *operands, operation=self.operation)


@dataclasses.dataclass(frozen=True)
class HeldFlight(_HashedOnce):
    """The results of a collective operation, or their cotangents, which the core holds.

    It is the identity, and so its own tangent and transpose.
    """

    of: CollectiveFlight

    handler = "hold"
    number_count = 0
    __hash__ = _HashedOnce.__hash__

    @property
    def communicator(self) -> Communicator:
        return self.of.communicator

    @property
    def function(self) -> str:
        return self.of.function

    @property
    def operands(self) -> Avals:
        return self.of.results

    @property
    def results(self) -> Avals:
        return self.of.results

    @property
    def forwarded(self) -> tuple[int | None, ...]:
        return tuple(
            None if operand is None else index
            for index, operand in enumerate(self.of.forwarded)
        )

    @property
    def computed_sources(self) -> tuple[None, ...]:
        return self.of.computed_sources

    def invariant_axes(self) -> Sequence[Hashable]:
        return self.of.invariant_axes()

    @property
    def batch_axes(self) -> tuple[int, int]:
        _, axis = self.of.batch_axes
        return axis, axis

    def check(self) -> None:
        """Nothing to check: MPI has given them."""

    def lower_operands(
        self, ctx: LoweringContext, operands: Sequence[Value]
    ) -> tuple[list[Value], list[ShapedArray]]:
        avals = self.arrivals()
        return list(map(convert, operands if avals else [], avals)), avals

    def attributes(self) -> Attributes:
        return {}

    def envelopes(self) -> None:
        return None

    def arrivals(self) -> list[ShapedArray]:
        # Those of the operation, whose wait may have the ticket of a result that is held.
        return self.of.arrivals()

    def lower_results(
        self, ctx: LoweringContext, arrived: Sequence[Value], wait_operands: Sequence[Value]
    ) -> list[Value]:
        return list(wait_operands) or list(map(convert, arrived, self.results))

    def batched(self, size: int) -> HeldFlight:
        return HeldFlight(self.of.batched(size))

    def check_batch(self, axes: Sequence[int | None]) -> None:
        """Nothing to check: they have been a batch before."""

    def for_tangents(self) -> HeldFlight:
        return self

    def push(
        self, primals: Sequence[Array], tangents: Sequence[Tangent]
    ) -> tuple[Array, Array]:
        pushed = instantiated(tangents)
        return bind_start(self, primals), bind_start(self, pushed)

    def for_cotangents(self) -> HeldFlight:
        return self

    def pull(
        self, cotangents: Sequence[Array], operands: Sequence[Operand]
    ) -> Sequence[Array | None]:
        axes = self.invariant_axes()
        if not axes or not varying_axes(array_or_aval(operands[0])).issuperset(axes):
            return cotangents
        # JAX has cast the value that all processes have to one that varies, and transposes
        # that to a sum over the processes.
        is_first = jax.lax.axis_index(axes) == 0
        return [jnp.where(is_first, ct, jnp.zeros_like(ct)) for ct in cotangents]


def flight_of(
    operation: Operation, avals: Sequence[ShapedArray], function: str
) -> Flight | None:
    """The flight of an operation, or None if it has no nonblocking form.

    Arguments:
        operation: The operation.
        avals: The types of its operands.
        function: The function of the user's that starts it.

    """
    if isinstance(operation, ReceivingOperation) and operation.status_number != NO_STATUS:
        return None  # MPI fills a status when it completes a receive.
    messages = operation.messages()
    if messages is not None:
        sent, received = messages
        first = sent.count_leaves()
        last = first + received.count_leaves()
        return ExchangeFlight(
            operation.communicator,
            function,
            sent,
            received,
            tuple(avals[:first]),
            tuple(avals[first:last]),
            operation.is_one_sided,
            marks_tangents=isinstance(operation, SendRecv),
            is_marked=len(avals) > last + operation.is_computed,
        )
    if f"i{operation.name}" in _core.NONBLOCKING:
        return CollectiveFlight(operation, tuple(avals))
    return None
