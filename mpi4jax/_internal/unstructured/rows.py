"""The rows of fields that processes send each other, as an exchange of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..blocks.copies import Rows, View
from ..blocks.description import Description, Message
from ..blocks.exchange import BlockExchange
from ..mpi.handles import Communicator
from ..mpi.tags import ROWS
from ..xla.jax_compat import ShapedArray


class RowList(NamedTuple):
    """The rows that a message has of each field."""

    #: The rank of the process on the other side, or a parameter that stands for it.
    rank: int
    length: int
    #: Position of the list in the table.
    start: int
    #: The first row, if all follow each other, so that no list is needed.
    first: int | None


class Pattern(NamedTuple):
    """Rows that are sent, and rows that are received."""

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
    count = len(ranks)
    sides = (lists[:count], lists[count:])
    pattern = Pattern(size, *(tuple(x for x in side if x.length) for side in sides))
    return pattern, np.concatenate([np.zeros(0, np.int32), *table]).astype(np.int32)


def first_row(rows: np.ndarray) -> int | None:
    """The first one of rows that follow each other."""
    is_contiguous = bool(np.all(np.diff(rows) == 1))
    return int(rows[0]) if is_contiguous and len(rows) else None


@dataclass(frozen=True)
class RowGhosts:
    """The ghost rows of some fields."""

    communicator: Communicator
    pattern: Pattern
    #: The axis of all fields along which the rows are.
    axis: int

    @property
    def is_empty(self) -> bool:
        return not (self.pattern.sent or self.pattern.received)

    def exchanges(self, types: Sequence[ShapedArray]) -> list[BlockExchange]:
        def messages(lists: Sequence[RowList]) -> tuple[Message, ...]:
            fields = [(n, x.shape) for n, x in enumerate(types)]
            return tuple(
                Message(rows.rank, ROWS, tuple(self._block(*x, rows) for x in fields))
                for rows in lists
            )

        sent, received = messages(self.pattern.sent), messages(self.pattern.received)
        description = Description(tuple(types), sent, received)
        return [BlockExchange(self.communicator, description)]

    def _block(self, field: int, shape: tuple[int, ...], rows: RowList) -> View:
        """The listed rows of a field."""
        axis = self.axis % len(shape)
        view = View(field, shape, 0, tuple(map(range, shape)))
        if rows.first is not None:
            return view.along(axis, range(rows.first, rows.first + rows.length))
        listed = view.along(axis, range(rows.length))
        return listed._replace(rows=Rows(axis, rows.start))
