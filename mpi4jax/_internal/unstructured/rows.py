"""The rows of fields that processes send each other, as an exchange of blocks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..blocks.copies import Rows, View
from ..blocks.description import Description, Message
from ..blocks.exchange import BlockExchange
from ..mpi.handles import Communicator
from ..mpi.tags import ROWS
from ..operations._computed import is_computed
from ..operations._transposes import is_inexact


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
    """Which rows are sent, and which are received."""

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


class Step(NamedTuple):
    """A call of a plan, with all that defines it but the arrays."""

    pattern: Pattern
    axis: int
    communicator: Communicator

    def exchange(self, leaves: Sequence[Array]) -> BlockExchange:
        """The exchange that sets the ghosts of fields."""
        types = avals_of(leaves)
        sides = (self.pattern.sent, self.pattern.received)
        sent, received = (
            tuple(
                Message(
                    rows.rank,
                    ROWS,
                    tuple(self._block(n, x.shape, rows) for n, x in enumerate(types)),
                )
                for rows in side
            )
            for side in sides
        )
        description = Description(tuple(types), sent, received)
        return BlockExchange(self.communicator, description)

    def _block(self, field: int, shape: tuple[int, ...], rows: RowList) -> View:
        """The listed rows of a field."""
        axis = self.axis % len(shape)
        view = View(field, shape, 0, tuple(map(range, shape)))
        if rows.first is not None:
            return view.along(axis, range(rows.first, rows.first + rows.length))
        listed = view.along(axis, range(rows.length))
        return listed._replace(rows=Rows(axis, rows.start))

    def update(
        self, leaves: Sequence[Array], table: Sequence[Array], ranks: Sequence[Array]
    ) -> list[Array]:
        """The fields with the rows that other processes send.

        Arguments:
            leaves: The fields.
            table: The table of rows.
            ranks: The operand with the ranks that the program computes, if there is one.

        """
        return self.exchange(leaves).call(leaves, table, ranks)

    def accumulate(
        self, leaves: Sequence[Array], table: Sequence[Array], ranks: Sequence[Array]
    ) -> list[Array]:
        """The transpose of an update."""
        return self.exchange(leaves).transposed().call(leaves, table, ranks)

    def accumulate_extremum(
        self,
        leaves: Sequence[Array],
        table: Sequence[Array],
        ranks: Sequence[Array],
        *,
        operator: str,
    ) -> list[Array]:
        """The fields with the extremum of each row and its ghosts, which are then zero."""
        forwards = self.exchange(leaves).description
        sent, received = self.pattern.sent, self.pattern.received
        count = len(leaves)
        # The ghosts of others go to arrays behind the fields.
        copies = []
        for x in leaves:
            shape = list(x.shape)
            shape[self.axis] = sum(rows.length for rows in sent)
            copies.append(jnp.zeros(shape, x.dtype))
        starts = itertools.accumulate((rows.length for rows in sent), initial=0)
        arriving = tuple(
            message._replace(
                # The operand of zeros stays where PROC_NULL has sent nothing.
                may_be_null=is_computed(message.rank),
                blocks=tuple(
                    View(count + n, x.shape, 0, tuple(map(range, x.shape))).along(
                        self.axis % x.ndim, range(start, start + rows.length)
                    )
                    for n, x in enumerate(copies)
                ),
            )
            for message, rows, start in zip(forwards.sent, sent, starts, strict=False)
        )
        back = Description(
            (*forwards.arrays, *avals_of(copies)), sent=forwards.received, received=arriving
        )
        exchange = BlockExchange(self.communicator, back)
        arrays = exchange.call([*leaves, *copies], table, ranks)
        results = []
        for x, of_others in zip(arrays[:count], arrays[count:], strict=True):
            rows = _extremum(
                operator,
                jnp.moveaxis(x, self.axis, 0),
                jnp.moveaxis(of_others, self.axis, 0),
                self._rows(sent, table),
            )
            ghosts = self._rows(received, table)
            rows = rows.at[ghosts].set(jnp.zeros((), x.dtype), mode="drop")
            results.append(jnp.moveaxis(rows, 0, self.axis))
        return results

    @staticmethod
    def _rows(lists: Sequence[RowList], table: Sequence[Array]) -> Array:
        """All rows of one side."""
        (rows,) = table
        ends = (lists[0].start, lists[-1].start + lists[-1].length) if lists else (0, 0)
        return rows[slice(*ends)]


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
