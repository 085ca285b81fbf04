"""The rows of fields that processes send each other, as messages.

A message has the listed rows of all fields of one type, one field after the other. Two
lists of copies define which rows go into the messages, and where those go that come. An
update is the product of these linear functions and of the operation `exchange`. To
accumulate is its transpose: the transposed factors in the reverse order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..halo.slabs import FIRST_TAG
from ..moved.copies import Copy, CopyList, Rows, View
from ..mpi.handles import Communicator
from ..operations._arguments import PROC_NULL
from ..operations._messages import Messages
from ..operations._transposes import is_inexact
from ..operations.exchange import Exchange
from ..xla.jax_compat import ShapedArray

#: The tag of all messages, which halos don't have.
TAG = FIRST_TAG - 1


class RowList(NamedTuple):
    """The rows that a message has of each field."""

    #: The rank of the process on the other side, or a parameter that stands for it.
    rank: int
    length: int
    #: Where the list begins in the table.
    start: int
    #: The first row, if all follow each other, so that no list is needed.
    first: int | None


class Pattern(NamedTuple):
    """Which rows are sent, and which are received.

    A process that only sends receives nothing from nobody, and the other way round. So
    derivatives and maps, which look at arrays, find a call with both everywhere.
    """

    #: The number of rows of a field.
    size: int
    sent: tuple[RowList, ...]
    received: tuple[RowList, ...]


def whole(lists: Sequence[RowList]) -> slice:
    """Where the lists of one side are in the table."""
    return slice(lists[0].start, lists[-1].start + lists[-1].length) if lists else slice(0)


def pattern_of(
    size: int,
    ranks: Sequence[int],
    sent: Sequence[np.ndarray],
    received: Sequence[np.ndarray],
) -> tuple[Pattern, np.ndarray]:
    """A pattern, and its table: the rows sent to each rank, and those received."""
    table = [*sent, *received]
    starts = itertools.accumulate(map(len, table), initial=0)
    lists = [
        RowList(rank, len(rows), start, _first_row(rows))
        for rank, rows, start in zip([*ranks, *ranks], table, starts, strict=False)
    ]

    def messages(lists: Iterable[RowList]) -> tuple[RowList, ...]:
        nobody = RowList(PROC_NULL, 0, 0, None)
        return tuple(each for each in lists if each.length) or (nobody,) * bool(ranks)

    count = len(ranks)
    pattern = Pattern(size, messages(lists[:count]), messages(lists[count:]))
    return pattern, np.concatenate([np.zeros(0, np.int32), *table]).astype(np.int32)


def _first_row(rows: np.ndarray) -> int | None:
    is_contiguous = bool(np.all(np.diff(rows) == 1))
    return int(rows[0]) if is_contiguous and len(rows) else None


class Fields(NamedTuple):
    """The fields of a call, whose rows are along an axis."""

    types: list[ShapedArray]
    axis: int

    @property
    def dtypes(self) -> list[np.dtype]:
        return list(dict.fromkeys(x.dtype for x in self.types))

    def rows(self, field: int, rows: RowList) -> View:
        """The listed rows of a field."""
        shape = self.types[field].shape
        axis = self.axis % len(shape)
        ranges = list(map(range, shape))
        if rows.first is None:
            ranges[axis] = range(rows.length)
            listed = Rows(axis, rows.start)
            return View(field, shape, 0, tuple(ranges), listed)
        ranges[axis] = range(rows.first, rows.first + rows.length)
        return View(field, shape, 0, tuple(ranges))


class Part(NamedTuple):
    """The rows of a field that a message has."""

    in_field: View
    in_message: View


class Side:
    """The messages of one side: those sent, or those received.

    There is an array for each process and each type. They are numbered like arrays that
    come after the fields.
    """

    def __init__(self, fields: Fields, lists: Sequence[RowList]) -> None:
        self.types: list[ShapedArray] = []
        self.parts: list[Part] = []
        for rows, dtype in itertools.product(lists, fields.dtypes):
            array = len(fields.types) + len(self.types)
            size = 0
            for field, x in enumerate(fields.types):
                if x.dtype != dtype:
                    continue
                in_field = fields.rows(field, rows)
                shape = tuple(in_field.sizes)
                in_message = View(array, shape, size, tuple(map(range, shape)))
                self.parts.append(Part(in_field, in_message))
                size += math.prod(shape)
            self.types.append(ShapedArray((size,), dtype))
        count = len(lists)
        self.messages = Messages(
            tuple(rows.rank for rows in lists),
            (TAG,) * count,
            (len(fields.dtypes),) * count,
        )

    def pack(self) -> CopyList:
        """The function that appends the messages to the fields."""
        copies = tuple(itertools.starmap(Copy, self.parts))
        return CopyList((copies,), appended=tuple(self.types))

    def unpack(self) -> CopyList:
        """The function that puts the messages into the fields, and drops them."""
        copies = [Copy(in_message, in_field) for in_field, in_message in self.parts]
        copies.sort(key=lambda copy: copy.result.array)
        return CopyList((tuple(copies),), dropped=tuple(self.types))

    def buffers(self) -> list[Array]:
        return [jnp.zeros(x.shape, x.dtype) for x in self.types]


class Step(NamedTuple):
    """A call of a plan, with all that defines it but the arrays."""

    pattern: Pattern
    axis: int
    communicator: Communicator

    def fields(self, leaves: Sequence[Array]) -> Fields:
        return Fields(avals_of(leaves), self.axis)

    def sides(self, leaves: Sequence[Array]) -> tuple[Side, Side]:
        """The messages to be sent, and those to be received."""
        fields = self.fields(leaves)
        return Side(fields, self.pattern.sent), Side(fields, self.pattern.received)

    def exchange(
        self,
        sent: Side,
        received: Side,
        messages: Sequence[Array],
        numbers: Sequence[Array],
    ) -> list[Array]:
        """Send the messages of one side, and receive those of the other one."""
        operation = Exchange(self.communicator, sent.messages, received.messages)
        return operation.bind(*messages, *received.buffers(), *numbers)

    def update(
        self, leaves: Sequence[Array], table: Sequence[Array], numbers: Sequence[Array]
    ) -> list[Array]:
        """The fields with the rows that other processes send.

        Arguments:
            leaves: The fields.
            table: The table of rows.
            numbers: The operand with the ranks that the program computes, if there is one.

        """
        sent, received = self.sides(leaves)
        packed = sent.pack().apply(leaves, table)
        fields, messages = packed[: len(leaves)], packed[len(leaves) :]
        arrived = self.exchange(sent, received, messages, numbers)
        return received.unpack().apply([*fields, *arrived], table)

    def accumulate(
        self, leaves: Sequence[Array], table: Sequence[Array], numbers: Sequence[Array]
    ) -> list[Array]:
        """The transpose of an update: its steps, from the last to the first."""
        sent, received = self.sides(leaves)
        unpacked = received.unpack().transpose().apply(leaves, table)
        fields, messages = unpacked[: len(leaves)], unpacked[len(leaves) :]
        arrived = self.exchange(received, sent, messages, numbers)
        return sent.pack().transpose().apply([*fields, *arrived], table)

    def accumulate_extremum(
        self,
        leaves: Sequence[Array],
        table: Sequence[Array],
        numbers: Sequence[Array],
        *,
        operator: str,
    ) -> list[Array]:
        """The fields with the extremum of each row and its ghosts, which are then zero."""
        sent, received = self.sides(leaves)
        packed = received.pack().apply(leaves, table)
        fields, messages = packed[: len(leaves)], packed[len(leaves) :]
        arrived = self.exchange(received, sent, messages, numbers)
        results = []
        for field, x in enumerate(fields):
            axis = self.axis % x.ndim
            parts = [
                _part(arrived[part.in_message.array - len(fields)], part.in_message)
                for part in sent.parts
                if part.in_field.array == field
            ]
            rows = jnp.moveaxis(x, axis, 0)
            if parts:
                copies = jnp.moveaxis(jnp.concatenate(parts, axis), axis, 0)
                rows = _extremum(
                    operator, rows, copies, self._rows(self.pattern.sent, table)
                )
            ghosts = self._rows(self.pattern.received, table)
            rows = rows.at[ghosts].set(jnp.zeros((), x.dtype), mode="drop")
            results.append(jnp.moveaxis(rows, 0, axis))
        return results

    def _rows(self, lists: Sequence[RowList], table: Sequence[Array]) -> Array:
        """All rows of one side. A negative one is none."""
        (all_rows,) = table
        rows = all_rows[whole(lists)]
        return jnp.where(rows < 0, self.pattern.size, rows)


def _part(message: Array, view: View) -> Array:
    """A part of a message."""
    return message[view.start : view.start + math.prod(view.shape)].reshape(view.shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _extremum(operator: str, x: Array, copies: Array, rows: Array) -> Array:
    """The extremum of the rows of an array, and of copies of some of them."""
    at = x.at[rows]
    return {"MAX": at.max, "MIN": at.min}[operator](copies, mode="drop")


@_extremum.defjvp
def _push_extremum(
    operator: str, primals: Sequence[Array], tangents: Sequence[Array]
) -> tuple[Array, Any]:
    x, copies, rows = primals
    result = _extremum(operator, x, copies, rows)
    if not is_inexact(x):
        return result, np.zeros(x.shape, jax.dtypes.float0)

    def total(own: Array, others: Array) -> Array:
        """The sum over all that attain the extremum."""
        others = jnp.where(copies == result.at[rows].get(mode="fill"), others, 0)
        return jnp.where(x == result, own, 0).at[rows].add(others, mode="drop")

    count = total(jnp.ones_like(x), jnp.ones_like(copies))
    return result, total(*tangents[:2]) / count
