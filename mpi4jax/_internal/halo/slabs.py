"""The slabs of fields that processes send each other, as an exchange of blocks.

A message has the slabs of all fields, and those of both directions if these lead to the
same process. The directions of a group are in flight at the same time, and groups follow
each other: so the later ones send the ghost cells at corners that the earlier ones bring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..blocks.copies import Copy, CopyList, View
from ..blocks.description import Description, Message
from ..blocks.exchange import BlockExchange
from ..mpi.handles import Communicator
from ..mpi.tags import HALO
from ..operations._arguments import PROC_NULL


class Direction(NamedTuple):
    """One way in which cells travel along an axis: to the upper or the lower neighbor."""

    axis: int
    is_upward: bool
    #: The ranks of the neighbors, or what stands for them: on a mesh.
    source: int
    dest: int
    #: Whether the grid ends there for some of the processes, of which none knows whether it
    #: is one of them before it runs.
    may_end: bool

    @property
    def tag(self) -> int:
        return HALO + 2 * self.axis + self.is_upward


class Extent(NamedTuple):
    """Which points an array has along an axis."""

    size: int
    #: The halo width: the number of ghost cells on either side.
    lower: int
    upper: int
    #: How many of its own points a process has in common with each of its neighbors, as
    #: those on the faces between two cells.
    shared: int

    @property
    def own(self) -> range:
        return range(self.lower, self.size - self.upper)

    def ghosts(self, direction: Direction) -> range:
        """The ghost cells that are received in a direction."""
        if direction.is_upward:
            return range(self.lower)
        return range(self.size - self.upper, self.size)

    def sent(self, direction: Direction) -> range:
        """The own points that are the ghost cells of the next process in a direction."""
        if direction.is_upward:
            stop = self.size - self.upper - self.shared
            return range(stop - self.lower, stop)
        start = self.lower + self.shared
        return range(start, start + self.upper)


#: Of each field, along each divided axis.
Extents = tuple[tuple[Extent, ...], ...]


class Geometry(NamedTuple):
    """Which slabs are exchanged, and in which order."""

    #: The position of each axis in the arrays.
    positions: tuple[int, ...]
    #: Whether a slab has the ghost cells along the other axes, too.
    corners: bool
    #: The directions between processes. Those of a group are in flight at the same time.
    groups: tuple[tuple[Direction, ...], ...]
    #: Those of a process to itself, along periodic axes that are not divided.
    within: tuple[tuple[Direction, ...], ...]

    def ranges(self, shape: Sequence[int], parts: Sequence[range]) -> tuple[range, ...]:
        """The ranges of a part of an array, from those along the plan's axes."""
        ranges = list(map(range, shape))
        for position, part in zip(self.positions, parts, strict=True):
            ranges[position] = part
        return tuple(ranges)


class Fields:
    """Where the slabs of all fields are in the arrays."""

    def __init__(
        self, geometry: Geometry, leaves: Sequence[Array], extents: Extents
    ) -> None:
        self.geometry, self.extents = geometry, extents
        self.types = avals_of(leaves)

    def __len__(self) -> int:
        return len(self.types)

    def slab(self, field: int, axis: int, cells: range) -> View:
        """Some cells of a field along an axis, with all that is sent along with them."""
        shape, extents = self.types[field].shape, self.extents[field]
        parts = [
            range(extent.size) if self.geometry.corners else extent.own
            for extent in extents
        ]
        parts[axis] = cells
        return View(field, shape, 0, self.geometry.ranges(shape, parts))

    def sent(self, field: int, direction: Direction) -> View:
        cells = self.extents[field][direction.axis].sent(direction)
        return self.slab(field, direction.axis, cells)

    def ghosts(self, field: int, direction: Direction) -> View:
        cells = self.extents[field][direction.axis].ghosts(direction)
        return self.slab(field, direction.axis, cells)


def _exchanges(
    geometry: Geometry, fields: Fields, communicator: Communicator
) -> list[BlockExchange]:
    """The exchanges of all groups of directions, in their order."""

    def messages(
        group: Sequence[Direction], blocks: Blocks, rank_of: Callable[[Direction], int]
    ) -> tuple[Message, ...]:
        # On a periodic axis of two processes, both directions lead to the same one.
        bundles = itertools.groupby(group, lambda each: (each.axis, each.source, each.dest))
        return tuple(
            Message(
                rank_of(first),
                first.tag,
                tuple(
                    blocks(field, direction)
                    for direction in (first, *others)
                    for field in range(len(fields))
                ),
                first.may_end,
            )
            for _, (first, *others) in bundles
            if rank_of(first) != PROC_NULL
        )

    exchanges = [
        Description(
            tuple(fields.types),
            sent=messages(group, fields.sent, lambda direction: direction.dest),
            received=messages(group, fields.ghosts, lambda direction: direction.source),
        )
        for group in geometry.groups
    ]
    if exchanges:
        local = _copies_within(geometry, fields).stages
        exchanges[-1] = replace(exchanges[-1], local=local)
    return [BlockExchange(communicator, each) for each in exchanges]


def _copies_within(geometry: Geometry, fields: Fields) -> CopyList:
    """The copies of a process to itself."""
    return CopyList(
        tuple(
            tuple(
                Copy(fields.sent(field, direction), fields.ghosts(field, direction))
                for field in range(len(fields))
                for direction in group
            )
            for group in geometry.within
        )
    )


#: The block of a field in a direction.
Blocks = Callable[[int, Direction], View]

#: What an exchange does, or its transpose.
Step = Callable[
    [Geometry, Sequence[Array], Sequence[Array], Extents, Communicator], list[Array]
]


def exchange(
    geometry: Geometry,
    leaves: Sequence[Array],
    ranks: Sequence[Array],
    extents: Extents,
    communicator: Communicator,
) -> list[Array]:
    """The fields with the ghost cells that other processes send.

    Arguments:
        geometry: Which cells these are.
        leaves: The fields.
        ranks: The operand with the ranks that the program computes, if there is one.
        extents: Where their cells are.
        communicator: The communicator of the processes.

    """
    fields = Fields(geometry, leaves, extents)
    arrays = list(leaves)
    exchanges = _exchanges(geometry, fields, communicator)
    for each in exchanges:
        arrays = each.call(arrays, ranks=ranks)
    return arrays if exchanges else _copies_within(geometry, fields).apply(arrays)


def accumulate(
    geometry: Geometry,
    leaves: Sequence[Array],
    ranks: Sequence[Array],
    extents: Extents,
    communicator: Communicator,
) -> list[Array]:
    """The transpose of an exchange."""
    fields = Fields(geometry, leaves, extents)
    arrays = list(leaves)
    exchanges = _exchanges(geometry, fields, communicator)
    for each in reversed(exchanges):
        arrays = each.transposed().call(arrays, ranks=ranks)
    if exchanges:
        return arrays
    return _copies_within(geometry, fields).transpose().apply(arrays)
