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
from ..xla.dependence import depend
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
        RowList(rank, len(rows), start, first_row(rows))
        for rank, rows, start in zip([*ranks, *ranks], table, starts, strict=False)
    ]

    def messages(lists: Iterable[RowList]) -> tuple[RowList, ...]:
        nobody = RowList(PROC_NULL, 0, 0, None)
        return tuple(each for each in lists if each.length) or (nobody,) * bool(ranks)

    count = len(ranks)
    pattern = Pattern(size, messages(lists[:count]), messages(lists[count:]))
    return pattern, np.concatenate([np.zeros(0, np.int32), *table]).astype(np.int32)


def first_row(rows: np.ndarray) -> int | None:
    """The first one of rows that follow each other."""
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

    def packing(self) -> CopyList:
        """The function that appends the messages to the fields."""
        copies = tuple(itertools.starmap(Copy, self.parts))
        return CopyList((copies,), appended=tuple(self.types))

    def unpacking(self) -> CopyList:
        """The function that puts the messages into the fields, and drops them."""
        copies = [Copy(in_message, in_field) for in_field, in_message in self.parts]
        copies.sort(key=lambda copy: copy.result.array)
        return CopyList((tuple(copies),), dropped=tuple(self.types))

    def buffers(self) -> list[Array]:
        return [jnp.zeros(x.shape, x.dtype) for x in self.types]


def with_messages(
    copies: CopyList, fields: Sequence[Array], table: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """The fields, and the messages that a function appends to them."""
    arrays = copies.apply(fields, table)
    return arrays[: len(fields)], arrays[len(fields) :]


class Step(NamedTuple):
    """A call of a plan, with all that defines it but the arrays."""

    pattern: Pattern
    axis: int
    communicator: Communicator

    def sides(self, leaves: Sequence[Array]) -> tuple[Side, Side]:
        """The messages to be sent, and those to be received."""
        fields = Fields(avals_of(leaves), self.axis)
        return Side(fields, self.pattern.sent), Side(fields, self.pattern.received)

    def operation(self, sent: Side, received: Side) -> Exchange:
        """That sends the messages of one side, and receives those of the other one."""
        return Exchange(self.communicator, sent.messages, received.messages)

    def exchange(
        self,
        sent: Side,
        received: Side,
        messages: Sequence[Array],
        numbers: Sequence[Array],
    ) -> list[Array]:
        """Send the messages of one side, and receive those of the other one."""
        operation = self.operation(sent, received)
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
        fields, messages = with_messages(sent.packing(), leaves, table)
        arrived = self.exchange(sent, received, messages, numbers)
        return received.unpacking().apply([*fields, *arrived], table)

    def accumulate(
        self, leaves: Sequence[Array], table: Sequence[Array], numbers: Sequence[Array]
    ) -> list[Array]:
        """The transpose of an update: its steps, from the last to the first."""
        sent, received = self.sides(leaves)
        fields, messages = with_messages(received.unpacking().transpose(), leaves, table)
        arrived = self.exchange(received, sent, messages, numbers)
        return sent.packing().transpose().apply([*fields, *arrived], table)

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
        fields, messages = with_messages(received.packing(), leaves, table)
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
                extreme = _extremum(
                    operator, rows, copies, self._rows(self.pattern.sent, table)
                )
                # Also without copies here, who sends has to take part in the transpose.
                rows = depend(extreme, copies)
            ghosts = self._rows(self.pattern.received, table)
            rows = rows.at[ghosts].set(jnp.zeros((), x.dtype), mode="drop")
            results.append(jnp.moveaxis(rows, 0, axis))
        return results

    @staticmethod
    def _rows(lists: Sequence[RowList], table: Sequence[Array]) -> Array:
        """All rows of one side."""
        (rows,) = table
        return rows[lists[0].start : lists[-1].start + lists[-1].length]


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

    attains = copies == result.at[rows].get(mode="fill")

    def total(of_rows: Array, of_copies: Array) -> Array:
        """The sum over all that attain the extremum."""
        sums = jnp.where(x == result, of_rows, 0)
        return sums.at[rows].add(jnp.where(attains, of_copies, 0), mode="drop")

    count = total(jnp.ones_like(x), jnp.ones_like(copies))
    return result, total(*tangents[:2]) / count
