"""Copies between arrays, fused with the call that exchanges the messages.

In a program, one call of the core's copies parts of arrays into messages, another one sends
and receives, and a third one copies what has arrived to where it belongs. On CPUs, these
become one call, which takes less time:

- A message that is one contiguous part of an array is sent from there, or received there.
- Any other message is memory of that call alone, unless other operations read it, too.

JAX knows nothing of it: for JAX, the three remain linear functions with transposes. So it
serves whatever is composed of them: halos, index lists and divided arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .effects import custom_call_target
from .jax_compat import Value, ir, target_of
from .programs import (
    LoweredProgram,
    Positions,
    arrays_among,
    call_attribute,
    call_integers,
    replace_calls,
    users_of,
)

#: The handlers that fused calls have, and how many numbers are behind their operands.
_NUMBERS = {custom_call_target("exchange"): 0, custom_call_target("exchange_computed"): 1}
#: Those of copies, and of the transposes of copies.
_COPY, _GIVE_BACK = custom_call_target("copy"), custom_call_target("give_back")

#: The attribute of fused calls. Those that the recorder keeps are before it.
_FUSED = "with_copies"

#: How many numbers define a copy apart from its loops, a loop, and a loop over listed rows.
_ENDS, _LOOP, _ROWS = 5, 3, 5


def fuse_copies(
    program: LoweredProgram, calls: Sequence[ir.Operation]
) -> list[ir.Operation]:
    """Fuse those of a program's calls that exchange messages with the copies around them.

    Returns:
        The calls of the program, with the new ones in the places of the old ones.

    """
    exchanges = [n for n, call in enumerate(calls) if target_of(call) in _NUMBERS]
    fused = list(calls)
    if exchanges:
        positions = Positions(program)
        # Copies between two calls make messages of the later one.
        for n in reversed(exchanges):
            fused[n] = _fuse(calls[n], positions)
    return fused


def _fuse(call: ir.Operation, positions: Positions) -> ir.Operation:
    """A call and the copies around it, as one call. The call itself if there are none."""
    before, after = _copies_before(call, positions), _copies_after(call, positions)
    operations = [each for each in (before, call, after) if each is not None]
    if len(operations) == 1:
        return call
    arrays = _Arrays()
    packing = _Copies(before, arrays) if before else None
    operands = arrays_among(call.operands)
    array_count = len(operands) - _NUMBERS[target_of(call)]
    sent = list(map(arrays.read, operands[:array_count]))
    received = list(map(arrays.write, arrays_among(call.results)))
    unpacking = _Copies(after, arrays) if after else None
    if not arrays.are_closed(operations):
        return call

    #: Where the messages are that need no array of their own.
    in_place: dict[int, _Span] = {}
    if unpacking and after:
        for message in received:
            if (span := unpacking.receive_in_place(message, arrays, after)) is not None:
                in_place[message] = span
    if packing:
        arriving = list(in_place.values())
        for message in sent:
            span = packing.send_in_place(message, arrays, call, arriving)
            if span is not None:
                in_place[message] = span

    updated = [n for n, x in enumerate(arrays) if x.is_operand and x.is_written]
    read = [n for n, x in enumerate(arrays) if not x.is_written]
    new = [n for n, x in enumerate(arrays) if not x.is_operand and n not in in_place]
    # The handler numbers the operands and, behind them, the results.
    numbered = [*updated, *read, *updated, *new]
    array_numbers = {n: index for index, n in enumerate(numbered)}

    def spans(messages: Sequence[int]) -> list[int]:
        whole = (_Span(n, 0, arrays[n].size) for n in messages)
        spans = (in_place.get(span.array, span) for span in whole)
        return _flat((array_numbers[span.array], span.first, span.size) for span in spans)

    lists = [spans(sent), spans(received)]
    for copies in (packing, unpacking):
        lists += copies.lists(array_numbers) if copies else ([], [], [])
    position = positions[call]
    for each in operations:
        del positions[each]
    fused = replace_calls(
        operations,
        call,
        [arrays[n].values[0] for n in (*updated, *read)] + operands[array_count:],
        [arrays[n].values[-1] for n in (*updated, *new)],
        {_FUSED: [len(updated), *_flat((len(each), *each) for each in lists)]},
        updated=len(updated),
    )
    positions[fused] = position
    return fused


def _copies_before(call: ir.Operation, positions: Positions) -> ir.Operation | None:
    """The call that copies into what this one sends, if it may come right before it."""
    makers = {
        value.owner.operation
        for value in arrays_among(call.operands)
        if not isinstance(value.owner, ir.Block)
        and _copies_beside(value.owner.operation, call)
    }
    if len(makers) != 1:
        return None
    (maker,) = makers
    users = itertools.chain.from_iterable(map(users_of, maker.results))
    return None if any(positions.is_before(user, call) for user in users) else maker


def _copies_after(call: ir.Operation, positions: Positions) -> ir.Operation | None:
    """The call that copies what this one receives, if it may come right after it."""
    users = {
        user
        for value in arrays_among(call.results)
        for user in users_of(value)
        if _copies_beside(user, call)
    }
    if len(users) != 1:
        return None
    (user,) = users
    are_there = all(positions.is_ready(value, call) for value in user.operands)
    return user if are_there else None


def _copies_beside(operation: ir.Operation, call: ir.Operation) -> bool:
    """Whether an operation copies parts of arrays, and runs whenever the call does."""
    is_copying = target_of(operation) in (_COPY, _GIVE_BACK)
    return is_copying and operation.parent == call.parent


class _Array:
    """An array of a fused call."""

    def __init__(self, value: Value, *, is_operand: bool) -> None:
        #: What it is, one value after the other.
        self.values = [value]
        #: Whether the first value is there before the call.
        self.is_operand = is_operand
        self.size = math.prod(ir.RankedTensorType(value.type).shape)

    @property
    def is_written(self) -> bool:
        return not self.is_operand or len(self.values) > 1

    def is_only_for(self, operation: ir.Operation) -> bool:
        """Whether it is made within the call, and this operation uses it once."""
        users = [user for value in self.values for user in users_of(value)]
        return not self.is_operand and users == [operation]


class _Arrays(list[_Array]):
    """All arrays of a fused call."""

    def __init__(self) -> None:
        super().__init__()
        self._indices: dict[Value, int] = {}
        self._has_stale_reads = False

    def read(self, value: Value) -> int:
        """The index of the array that this value is. It may be a new operand."""
        if value not in self._indices:
            self._indices[value] = len(self)
            self.append(_Array(value, is_operand=True))
        index = self._indices[value]
        self._has_stale_reads |= self[index].values[-1] != value
        return index

    def write(self, value: Value, updated: int | None = None) -> int:
        """The index of the array that this result is: an updated one, or a new one."""
        index = len(self) if updated is None else updated
        if updated is None:
            self.append(_Array(value, is_operand=False))
        else:
            self[updated].values.append(value)
        self._indices[value] = index
        return index

    def are_closed(self, operations: Sequence[ir.Operation]) -> bool:
        """Whether no value is used that an array is only within these operations."""
        within = [value for x in self for value in x.values[x.is_operand : -1]]
        users = itertools.chain.from_iterable(map(users_of, within))
        return not self._has_stale_reads and all(user in operations for user in users)


class _Copy(NamedTuple):
    """A copy, as `_encode` in `moved/copies.py` writes it."""

    #: The array and its first element, of the source and of the result.
    source: int
    source_start: int
    result: int
    result_start: int
    #: For each loop the count, and the strides of source and result.
    loops: tuple[int, ...]
    #: The numbers of the loop over listed rows, or none.
    rows: tuple[int, ...]

    @property
    def contiguous_size(self) -> int | None:
        """The number of elements, if they are one behind the other on both sides."""
        is_contiguous = not self.rows and self.loops[1:] in ((), (1, 1))
        return math.prod(self.loops) if is_contiguous else None


class _Span(NamedTuple):
    """The elements of an array that a message has, from one on."""

    array: int
    first: int
    size: int

    def overlaps(self, other: _Span) -> bool:
        is_apart = (
            self.first + self.size <= other.first or other.first + other.size <= self.first
        )
        return self.array == other.array and not is_apart


class _Copies:
    """Copies, or the transpose of copies, that a fused call makes."""

    def __init__(self, call: ir.Operation, arrays: _Arrays) -> None:
        operands, results = arrays_among(call.operands), arrays_among(call.results)
        self._is_transposed = target_of(call) == _GIVE_BACK
        row_numbers = call_integers(call, "rows")
        #: The array with the lists of rows.
        self._table = None if row_numbers is None else arrays.read(operands.pop())
        count = len(operands) if self._is_transposed else call_attribute(call, "updated")
        read = list(map(arrays.read, operands))
        written = [
            arrays.write(value, read[n] if n < count else None)
            for n, value in enumerate(results)
        ]
        numbers = call_integers(call, "copies") or []
        sources = [*read[count:], *read[:count]]
        self._copies = list(_decode(numbers, row_numbers or [], sources, written))
        stages = None if self._is_transposed else call_integers(call, "stages")
        #: How many copies each stage has, or nothing of the transpose.
        self._stages = stages or []

    def send_in_place(
        self,
        message: int,
        arrays: _Arrays,
        call: ir.Operation,
        arriving: Sequence[_Span],
    ) -> _Span | None:
        """Where a message is sent from, if no copy has to make it. The copy is removed.

        Arguments:
            message: The index of the message.
            arrays: All arrays.
            call: The call that sends it.
            arriving: The parts of arrays into which messages are received meanwhile.

        """
        copy = self._copy_of(message, arrays[message], call)
        if copy is None or copy.result != message:
            return None
        span = _Span(copy.source, copy.source_start, arrays[message].size)
        is_updated = any(each.result == span.array for each in self._copies)
        if is_updated or any(map(span.overlaps, arriving)):
            return None
        self._remove(copy)
        return span

    def receive_in_place(
        self, message: int, arrays: _Arrays, after: ir.Operation
    ) -> _Span | None:
        """Where a message is received, if no copy has to move it. The copy is removed.

        Arguments:
            message: The index of the message.
            arrays: All arrays.
            after: The call of these copies.

        """
        copy = self._copy_of(message, arrays[message], after)
        if copy is None or copy.source != message:
            return None
        # What later stages write, the first one may read.
        if copy not in self._copies[: self._stages[0]]:
            return None
        self._remove(copy)
        return _Span(copy.result, copy.result_start, arrays[message].size)

    def _copy_of(self, message: int, array: _Array, user: ir.Operation) -> _Copy | None:
        """The one copy that reads or writes a message for one user, if it is contiguous."""
        copies = [copy for copy in self._copies if message in (copy.source, copy.result)]
        if self._is_transposed or len(copies) != 1 or not array.is_only_for(user):
            return None
        return copies[0] if copies[0].contiguous_size == array.size else None

    def _remove(self, copy: _Copy) -> None:
        index = self._copies.index(copy)
        ends = itertools.accumulate(self._stages)
        stage = next(stage for stage, end in enumerate(ends) if index < end)
        self._stages[stage] -= 1
        del self._copies[index]

    def lists(self, array_numbers: dict[int, int]) -> tuple[list[int], ...]:
        """The copies, their stages and their rows, with the fused call's array numbers."""
        copies = [
            copy._replace(
                source=array_numbers[copy.source], result=array_numbers[copy.result]
            )
            for copy in self._copies
        ]
        numbers = ((*copy[:4], len(copy.loops) // _LOOP, *copy.loops) for copy in copies)
        rows = _flat(copy.rows for copy in copies)
        if self._table is not None:
            rows.insert(0, array_numbers[self._table])
        return _flat(numbers), self._stages, rows


def _decode(
    numbers: Sequence[int],
    row_numbers: Sequence[int],
    sources: Sequence[int],
    results: Sequence[int],
) -> Iterator[_Copy]:
    """The copies in the attributes of a call with these sources and results."""
    start, first_row = 0, 0
    while start < len(numbers):
        source, source_start, result, result_start, count = numbers[start : start + _ENDS]
        start, end = start + _ENDS, start + _ENDS + count * _LOOP
        loops = tuple(numbers[start:end])
        rows = tuple(row_numbers[first_row : first_row + _ROWS])
        yield _Copy(
            sources[source], source_start, results[result], result_start, loops, rows
        )
        start, first_row = end, first_row + _ROWS


def _flat(numbers: Iterable[Iterable[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(numbers))
