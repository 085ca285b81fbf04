"""An exchange of blocks as one call of the core, on CPUs.

The core copies blocks into messages, sends and receives these, and copies what arrives to
its place. A message that is one contiguous block of an array is sent from there, or
received there. Other messages are in memory of the call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..mpi.handles import Communicator
from ..operations._lowering import call_in_program
from ..operations._messages import message_attributes
from ..xla.call_sites import WITH_COPIES, Envelope, Envelopes
from ..xla.jax_compat import (
    LoweringContext,
    ShapedArray,
    Value,
    ir_constant,
)
from .copies import Copy, array_attribute, encode, runs_in_core
from .description import Description, MessageArrays


class _Span(NamedTuple):
    """Contiguous elements of an array."""

    array: int
    first: int
    size: int

    def overlaps(self, other: _Span) -> bool:
        is_apart = (
            self.first + self.size <= other.first or other.first + other.size <= self.first
        )
        return self.array == other.array and not is_apart


class _Call(NamedTuple):
    """Arrays, messages and copies of a call, by the indices of :class:`OneCall`."""

    #: Message arrays of both directions.
    sent: MessageArrays
    received: MessageArrays
    #: Stages of copies before and after the messages, or the transposes of these.
    before: Sequence[Sequence[Copy]]
    after: Sequence[Sequence[Copy]]
    #: Operands that results update.
    updated: list[int]
    #: Parts of arrays that are messages themselves, by the index of the message array.
    in_place: dict[int, _Span]


class OneCall:
    """An exchange as one call.

    Its arrays have indices: the operands, then the message arrays, and then new arrays.
    """

    def __init__(self, description: Description, avals: Sequence[ShapedArray]) -> None:
        self.description = description
        self.count = len(description.arrays)
        operands = avals[: self.count]
        self.batch = len(description.batch_shape(operands))
        sent = MessageArrays(description.sent, description.arrays, self.count)
        first = self.count + len(sent.types)
        received = MessageArrays(description.received, description.results, first)
        first += len(received.types)
        new = description.new or ()
        #: Indices of the results of the exchange.
        self.results = [*range(first, first + len(new))] if new else [*range(self.count)]
        types = [*description.arrays, *sent.types, *received.types, *new]
        self.types = description.with_batch(types, operands)
        self.sent, self.received = sent, received

    @property
    def is_for_core(self) -> bool:
        """Whether the core can make the call."""
        description = self.description
        # Only an exchange in place has blocks that stay where PROC_NULL sends nothing. Its
        # transpose would have to add them.
        keeps_blocks = description.new is None and not description.is_transposed
        return (
            runs_in_core(self.types, is_transposed=description.is_transposed)
            and self.sent.are_messages
            and self.received.are_messages
            and (keeps_blocks or not any(self.received.may_be_null))
        )

    def call(self) -> _Call:
        """The arrays, messages and copies of the call."""
        description = self.description
        packing = [Copy(*block) for block in self.sent.blocks]
        unpacking, *local = (
            [Copy(a, b._replace(array=self.results[b.array])) for a, b in stage]
            for stage in ([Copy(b, a) for a, b in self.received.blocks], *description.local)
        )
        if description.is_transposed:
            # Blocks are added to messages of zeros, which are sent.
            updated = _arrays_of([unpacking, *local, packing]) - {*self.sent.indices}
            updated |= {*self.received.transferred}
            return _Call(
                sent=self.received,
                received=self.sent,
                before=[unpacking, *local],
                after=[packing],
                updated=sorted(updated),
                in_place={},
            )
        written = {copy.result.array for copy in itertools.chain(unpacking, *local)}
        in_place = self._received_in_place(unpacking)
        in_place.update(self._sent_in_place(packing, [*in_place.values()]))
        packing, unpacking = (
            [copy for copy in copies if _arrays_of([[copy]]).isdisjoint(in_place)]
            for copies in (packing, unpacking)
        )
        # A message that PROC_NULL does not send has the blocks as they were.
        nullable = {*self.received.nullable}
        packing += [Copy(b, a) for a, b in unpacking if a.array in nullable]
        packing.sort(key=lambda copy: copy.source.array)
        unpacking.sort(key=lambda copy: copy.result.array)
        return _Call(
            sent=self.sent,
            received=self.received,
            before=[packing],
            after=[unpacking, *local],
            updated=sorted(n for n in written if n < self.count),
            in_place=in_place,
        )

    def _received_in_place(self, unpacking: Sequence[Copy]) -> dict[int, _Span]:
        spans = {}
        for message in self.received.transferred:
            copies = [copy for copy in unpacking if copy.source.array == message]
            if (starts := self._starts_of_whole(message, copies)) is not None:
                spans[message] = self._span(copies[0].result.array, starts[1], message)
        return spans

    def _sent_in_place(
        self, packing: Sequence[Copy], arriving: Sequence[_Span]
    ) -> dict[int, _Span]:
        spans = {}
        for message in self.sent.transferred:
            copies = [copy for copy in packing if copy.result.array == message]
            if (starts := self._starts_of_whole(message, copies)) is not None:
                span = self._span(copies[0].source.array, starts[0], message)
                if not any(map(span.overlaps, arriving)):
                    spans[message] = span
        return spans

    def _span(self, array: int, first: int, message: int) -> _Span:
        return _Span(array, first, math.prod(self.types[message].shape))

    def _starts_of_whole(
        self, message: int, copies: Sequence[Copy]
    ) -> tuple[int, int] | None:
        """First elements of source and result of the one copy that is a whole message.

        None if there are several copies, or if the elements are not contiguous.
        """
        numbers = dict(enumerate(range(len(self.types))))
        encoded = encode(copies, self.types, self.batch, numbers, numbers)
        if len(copies) != 1 or not encoded:
            return None
        (copy,) = encoded
        is_whole = copy.contiguous_size == math.prod(self.types[message].shape)
        return (copy.source_start, copy.result_start) if is_whole else None

    def lower(
        self, ctx: LoweringContext, communicator: Communicator, operands: Sequence[Value]
    ) -> Sequence[Value]:
        """Lower the exchange to a call of the core."""
        description, count, call = self.description, self.count, self.call()
        table, ranks = description.split_dynamic(operands[count:])
        updated, in_place = call.updated, call.in_place
        used = _arrays_of([*call.before, *call.after])
        used |= {span.array for span in in_place.values()}
        read = sorted(n for n in used if n < count and n not in updated)
        messages = [*call.sent.transferred, *call.received.transferred]
        new = [] if description.new is None else self.results
        results = list(dict.fromkeys([*updated, *new, *messages]))
        results = [n for n in results if n not in in_place]
        # The core numbers the operands and, behind them, the results.
        numbers = {n: number for number, n in enumerate([*updated, *read])}
        table_number = len(numbers)
        first = len(updated) + len(read) + len(table)
        numbers.update((n, number) for number, n in enumerate(results, first))

        def spans(side: MessageArrays) -> list[int]:
            spans = (in_place.get(n, self._span(n, 0, n)) for n in side.transferred)
            return [x for span in spans for x in (numbers[span.array], *span[1:])]

        def lists(stages: Sequence[Sequence[Copy]]) -> list[list[int]]:
            encoded = [
                encode(stage, self.types, self.batch, numbers, numbers) for stage in stages
            ]
            copies = list(itertools.chain(*encoded))
            has_rows = any(copy.has_rows for copy in copies)
            return [
                [number for copy in copies for number in copy.numbers],
                [] if description.is_transposed else list(map(len, encoded)),
                [table_number, *(n for copy in copies for n in copy.rows)] * has_rows,
            ]

        copy_lists = [spans(call.sent), spans(call.received)]
        copy_lists += [*lists(call.before), *lists(call.after)]
        with_lengths = (n for each in copy_lists for n in (len(each), *each))
        envelopes = Envelopes(*map(self._envelopes, (call.sent, call.received)))
        values = dict(enumerate(operands[:count]))
        for n in updated:
            if n >= count:
                zero = np.zeros((), self.types[n].dtype)
                values[n] = ir_constant(np.broadcast_to(zero, self.types[n].shape))
        operand_indices = [*updated, *read]
        given = call_in_program(
            ctx,
            communicator,
            "exchange",
            [*(values[n] for n in operand_indices), *table, *ranks],
            {
                **message_attributes(
                    communicator, call.sent.messages, call.received.messages
                ),
                WITH_COPIES: array_attribute([len(updated), *with_lengths]),
            },
            envelopes,
            envelopes,
            is_computed=bool(ranks),
            avals_in=[*(self.types[n] for n in operand_indices), *ctx.avals_in[count:]],
            avals_out=[self.types[n] for n in results],
            aliases={n: n for n in range(len(updated))},
        )
        values.update(zip(results, given, strict=True))
        return [values[n] for n in self.results]

    def _envelopes(self, side: MessageArrays) -> tuple[Envelope, ...]:
        return side.messages.envelopes([self.types[n] for n in side.indices])


def _arrays_of(stages: Iterable[Iterable[Copy]]) -> set[int]:
    """Indices of the arrays that copies read or write."""
    return {view.array for stage in stages for copy in stage for view in copy}
