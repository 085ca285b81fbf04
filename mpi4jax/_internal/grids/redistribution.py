"""Moves of arrays from one division among processes to another one.

What a process sends to another one is what its region of the whole array has in common with
the region that the other one is to have.

On a mesh, where the program is equal on all processes, one axis with equal parts is divided
instead of another one. Then all processes send the same parts of their regions to each
rank, one of which is their own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..blocks.copies import Copy, View
from ..blocks.description import Description, Message
from ..blocks.exchange import BlockExchange
from ..blocks.on_host import Host, exchange_on_host
from ..mpi.handles import Communicator
from ..mpi.tags import REDISTRIBUTION
from ..operations._arguments import like
from ..operations._eager import PlanCall
from ..xla.jax_compat import ShapedArray
from .division import Division, Region, Span, no_region, shape_of, whole_region

#: Indices along each axis of an array.
Box: TypeAlias = tuple[range, ...]


class Regions(Protocol):
    """Regions of a whole array that processes have. They compare by value."""

    def region(self, rank: int) -> Region:
        """The points of a process."""

    @override
    def __hash__(self) -> int: ...


class Distribution(NamedTuple):
    """Regions of a division of a whole array."""

    division: Division
    #: The one process that has the whole array, if the array is not divided.
    root: int | None = None
    #: Whether processes have ghosts, too. Otherwise each point has one process.
    has_ghosts: bool = False

    def region(self, rank: int) -> Region:
        """The points of a process."""
        if self.root is not None:
            region = whole_region if rank == self.root else no_region
            return region(self.division.shape)
        if self.has_ghosts:
            return self.division.local_region(rank)
        return self.division.distinct_region(rank)


#: The method :meth:`Regions.region`, which may keep its results.
RegionOf: TypeAlias = Callable[[Regions, int], Region]


@dataclass(frozen=True)
class Redistribution(PlanCall):
    """A call that moves arrays: all together are one message to each process."""

    name: ClassVar[str] = "redistribute"

    communicator: Communicator
    #: The regions of each array, before and after.
    sources: tuple[Regions, ...]
    results: tuple[Regions, ...]

    def call_in_program(
        self, leaves: Sequence[Array], parts: Sequence[Array] = ()
    ) -> list[Array]:
        """The arrays after the move.

        Arguments:
            leaves: The arrays before it.
            parts: Arrays that the result differs from in the points that are moved.

        """
        description = self._description(avals_of(leaves), avals_of(parts))
        exchange = BlockExchange(self.communicator, description)
        return exchange.call([*leaves, *parts])[-len(leaves) :]

    def move_on_host(
        self, comm: MPI.Intracomm, arrays: Sequence[Host], results: Sequence[Host]
    ) -> None:
        """Set the points of NumPy's arrays that are moved, without a program.

        Arguments:
            comm: The communicator, for messages that meet no others.
            arrays: The arrays before the move, of any types.
            results: Those after it.

        """
        description = self._description(avals_of(arrays), avals_of(results))
        exchange_on_host(comm, description, [*arrays, *results])

    @property
    def _rank(self) -> int:
        """The own rank, or one that does the same as all others."""
        return 0 if self.communicator.is_on_mesh else self.communicator.rank

    def _description(
        self, fields: Sequence[ShapedArray], parts: Sequence[ShapedArray]
    ) -> Description:
        # Arrays have few distributions, and the own region is compared with all others.
        region_of = functools.cache(_region_of)
        pairs = zip(fields, self.results, strict=True)
        new = tuple(_with_region(x, region_of(result, self._rank)) for x, result in pairs)
        # Results in place are behind the arrays.
        arrays, results, first = (*fields, *parts), parts or new, len(parts)
        own_rank = None if self.communicator.is_on_mesh else self._rank
        sent, received = [], []
        for rank in range(self.communicator.size):
            if rank == own_rank:
                continue
            outgoing = self._blocks(region_of, self._rank, rank)
            if outgoing:
                views = (_view(n, fields[n], source) for n, source, _ in outgoing)
                sent.append(Message(rank, REDISTRIBUTION, tuple(views)))
            incoming = self._blocks(region_of, rank, self._rank)
            if incoming:
                views = (_view(first + n, results[n], own) for n, _, own in incoming)
                received.append(Message(rank, REDISTRIBUTION, tuple(views)))
        staying = [] if own_rank is None else self._blocks(region_of, own_rank, own_rank)
        copies = tuple(
            Copy(_view(n, fields[n], source), _view(first + n, results[n], own))
            for n, source, own in staying
        )
        return Description(
            arrays,
            tuple(sent),
            tuple(received),
            local=(copies,) if copies else (),
            new=None if parts else new,
        )

    def _blocks(
        self, region_of: RegionOf, sender: int, receiver: int
    ) -> list[tuple[int, Box, Box]]:
        """The blocks that a process has for another one, in the order of a message.

        Each with the index of its array, and its boxes in the arrays of both.
        """
        blocks = []
        for n, (source, result) in enumerate(zip(self.sources, self.results, strict=True)):
            pairs = zip(region_of(source, sender), region_of(result, receiver), strict=True)
            for ranges in itertools.product(*itertools.starmap(_common, pairs)):
                before, after = zip(*ranges, strict=True) if ranges else ((), ())
                blocks.append((n, before, after))
        return blocks


def _region_of(regions: Regions, rank: int) -> Region:
    return regions.region(rank)


def _common(source: Sequence[Span], result: Sequence[Span]) -> list[tuple[range, range]]:
    """The points along an axis that two processes have in common, in the arrays of both."""
    common = []
    for a, b in itertools.product(source, result):
        start = max(a.points.start, b.points.start)
        stop = min(a.points.stop, b.points.stop)
        if start < stop:
            common.append((_local(a, start, stop), _local(b, start, stop)))
    return common


def _local(span: Span, start: int, stop: int) -> range:
    shift = span.first - span.points.start
    return range(start + shift, stop + shift)


def _with_region(x: ShapedArray, region: Region) -> ShapedArray:
    """Type of an array that consists of a region of the whole array."""
    return like(x, (*x.shape[: x.ndim - len(region)], *shape_of(region)))


def _view(array: int, x: ShapedArray, box: Box) -> View:
    """A box in an array that has its axes last."""
    before = map(range, x.shape[: x.ndim - len(box)])
    return View(array, x.shape, 0, (*before, *box))
