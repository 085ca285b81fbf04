"""The slabs of fields that processes send each other, as an exchange of blocks.

A message has the slabs of all fields, and those of both directions if these lead to the
same process. The directions of a group are in flight at the same time, and groups follow
each other: so the later ones send the ghost cells at corners that the earlier ones bring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..blocks.copies import Copy, View
from ..blocks.description import Description, Message
from ..blocks.exchange import BlockExchange
from ..mpi.handles import Communicator
from ..mpi.tags import HALO
from ..operations._arguments import PROC_NULL
from ..xla.jax_compat import ShapedArray


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
    """Points of an array along an axis: ghosts, and own points between them."""

    size: int
    #: The halo width: the number of ghost cells on either side.
    lower: int
    upper: int
    #: Number of own points that a process shares with each of its neighbors, such as
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
    """Slabs that are exchanged, and their order."""

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


#: The block of a field in a direction.
Blocks = Callable[[int, Direction], View]


@dataclass(frozen=True)
class CellGhosts:
    """The ghost cells of some fields."""

    communicator: Communicator
    geometry: Geometry
    extents: Extents

    @property
    def is_empty(self) -> bool:
        return not (self.geometry.groups or self.geometry.within)

    def exchanges(self, types: Sequence[ShapedArray]) -> list[BlockExchange]:
        """The exchanges of all groups of directions, in their order."""
        fields = range(len(types))

        def slab(field: int, axis: int, cells: range) -> View:
            """Cells of a field along an axis, with all that is sent along with them."""
            shape, extents = types[field].shape, self.extents[field]
            parts = [
                range(extent.size) if self.geometry.corners else extent.own
                for extent in extents
            ]
            parts[axis] = cells
            return View(field, shape, 0, self.geometry.ranges(shape, parts))

        def sent(field: int, direction: Direction) -> View:
            axis = direction.axis
            return slab(field, axis, self.extents[field][axis].sent(direction))

        def ghosts(field: int, direction: Direction) -> View:
            axis = direction.axis
            return slab(field, axis, self.extents[field][axis].ghosts(direction))

        def messages(
            group: Sequence[Direction], blocks: Blocks, rank_of: Callable[[Direction], int]
        ) -> tuple[Message, ...]:
            # On a periodic axis of two processes, both directions lead to the same one.
            bundles = itertools.groupby(group, lambda d: (d.axis, d.source, d.dest))
            return tuple(
                Message(
                    rank_of(first),
                    first.tag,
                    tuple(
                        blocks(field, direction)
                        for direction in (first, *others)
                        for field in fields
                    ),
                    first.may_end,
                )
                for _, (first, *others) in bundles
                if rank_of(first) != PROC_NULL
            )

        descriptions = [
            Description(
                tuple(types),
                sent=messages(group, sent, lambda direction: direction.dest),
                received=messages(group, ghosts, lambda direction: direction.source),
            )
            for group in self.geometry.groups or [()]
        ]
        # The copies of a process to itself.
        local = [
            [
                Copy(sent(field, direction), ghosts(field, direction))
                for field in fields
                for direction in group
            ]
            for group in self.geometry.within
        ]
        descriptions[-1] = replace(descriptions[-1], local=tuple(map(tuple, local)))
        return [BlockExchange(self.communicator, each) for each in descriptions]
