"""Where arrays live: how the values of a leaf go to the processes that write its files.

Each kind of plan has a place, which knows the shape of the whole array, and the points that
this process has. Saving is a move to the files of processes, and loading the move back.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.checks import integer
from ..arguments.types import Integer
from ..grids.division import DividedAxis, Division, Region, Span, shape_of
from ..grids.plan import GridPlan
from ..grids.redistribution import Redistribution
from ..unstructured.on_ranks import RankRows
from ..unstructured.plan import Plan as UnstructuredPlan
from ..unstructured.setup_messages import Routes, update
from .chunks import Block, FileAxis, Sizes, round_up
from .leaves import Host

#: Reads a box of an array of a file.
Reader = Callable[[Sequence[range]], Host]


@dataclass(frozen=True)
class Rows:
    """Rows of which each process has its own number, such as particles.

    Arguments:
        count: The number of rows of this process: the first ones along the first axis of
            its arrays. By default, when arrays are saved, all of them, and when they are
            loaded, an even share.

    """

    count: Integer | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            count = integer("files.Rows", "count", self.count)
            if count < 0:
                raise ValueError(
                    f"files.Rows got {count} for argument `count`, expected a number of "
                    "rows, not negative"
                )


class Place(ABC):
    """The place of an array.

    It may have axes of its own at the end, which no plan knows.
    """

    #: The kind of the plan, for errors.
    kind: str
    #: The shape of the whole array, as a file has it.
    shape: tuple[int, ...]
    #: For each axis, how many points the file has below and above those of the whole array:
    #: ghost cells at the edge of a grid.
    edges: tuple[tuple[int, int], ...]
    #: Whether sizes of chunks and files have to divide the parts of processes.
    divides_parts = False

    @property
    @abstractmethod
    def largest(self) -> tuple[int, ...]:
        """The size of the largest part of a process along each axis."""

    def file_sizes(self, chunk: Sizes, default: Sizes) -> Sizes:
        """The sizes of files with whole chunks: as large as the largest part of a process.

        Arguments:
            chunk: The sizes of chunks.
            default: Those that they have if nothing else is asked for.

        """
        return round_up(self.largest, chunk)

    def check_sizes(self, sizes: Sizes, text: str) -> None:
        """Raise ValueError, whose text begins with this one, if sizes can't be these."""
        for size, part, points in zip(sizes, self.largest, self.shape, strict=True):
            if self.divides_parts and part < points and part % size:
                raise ValueError(
                    f"{text}, expected divisors of the shape of a shard, {self.largest}"
                )

    @abstractmethod
    def to_files(self, function: str, array: Host, sizes: Sizes) -> list[Block]:
        """The blocks of whole files of these sizes that this process writes."""

    @abstractmethod
    def from_files(self, function: str, read: Reader, sizes: Sizes, dtype: str) -> Any:
        """The part of this process. Others read, too: all call this together.

        Each piece of these sizes is read by one process.
        """


class WholePlace(Place):
    """The place of an array that all processes have. They write its files in turn."""

    kind = "None"

    def __init__(
        self,
        comm: MPI.Intracomm,
        shape: tuple[int, ...],
        edges: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self._comm, self.shape = comm, shape
        self.edges = edges or ((0, 0),) * len(shape)

    @override
    @property
    def largest(self) -> tuple[int, ...]:
        return self.shape

    @override
    def file_sizes(self, chunk: Sizes, default: Sizes) -> Sizes:
        return round_up(default, chunk)

    @override
    def to_files(self, function: str, array: Host, sizes: Sizes) -> list[Block]:
        counts = [-(-n // size) for n, size in zip(self.shape, sizes, strict=True)]
        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        blocks = []
        for number in range(rank, math.prod(counts), size):
            index = np.unravel_index(number, counts) if counts else ()
            start = tuple(int(k) * n for k, n in zip(index, sizes, strict=True))
            stop = (min(a + n, m) for a, n, m in zip(start, sizes, self.shape, strict=True))
            blocks.append(Block(start, array[tuple(map(slice, start, stop))]))
        return blocks

    @override
    def from_files(self, function: str, read: Reader, sizes: Sizes, dtype: str) -> Host:
        inner = [
            range(low, n - high)
            for n, (low, high) in zip(self.shape, self.edges, strict=True)
        ]
        whole = np.empty(tuple(map(len, inner)), dtype)
        if self._comm.Get_rank() == 0:
            whole[...] = read(inner)
        flat = whole.reshape(-1).view(np.uint8)
        for first in range(0, flat.size, _LARGEST_MESSAGE):
            self._comm.Bcast(flat[first : first + _LARGEST_MESSAGE])
        return whole


#: Bytes of the largest message by mpi4py: C's `int` counts them.
_LARGEST_MESSAGE = 1 << 30


class _Regions(NamedTuple):
    """Regions of an array of a file that a grid of processes divides.

    The points of a file are those of the whole array, and before and behind them ghost
    cells at the edges of the grid.
    """

    #: The regions: "own" points, each of one process, all "local" ones, with ghosts, or
    #: those in the "files" of a process.
    role: str
    division: Division
    #: For each axis, the points of the file below and above the whole array.
    edges: tuple[tuple[int, int], ...]
    #: The sizes of files.
    sizes: tuple[int, ...]
    #: The sizes of axes behind those of the division.
    behind: tuple[int, ...]

    def region(self, rank: int) -> Region:
        is_local = self.role == "local"
        region: list[tuple[Span, ...]] = []
        for size, (lower, upper) in zip(self.division.shape, self.edges, strict=True):
            points = range(lower, lower + size) if is_local else range(lower + size + upper)
            region.append((Span(points, 0),))
        coordinates = self.division.coordinates(rank)
        for axis, coordinate in zip(self.division.axes, coordinates, strict=True):
            region[axis.position] = self._spans(axis, coordinate)
        return (*region, *((Span(range(size), 0),) for size in self.behind))

    def _spans(self, axis: DividedAxis, coordinate: int) -> tuple[Span, ...]:
        lower, upper = self.edges[axis.position]
        if self.role == "files":
            return (Span(self._file_axis(axis).owned(coordinate), 0),)
        if self.role == "own":
            points = self._own(axis, coordinate)
            first = points.start - lower - axis.start(coordinate) + axis.lower
            return (Span(points, first),)
        if axis.is_periodic:
            return tuple(
                Span(range(points.start + lower, points.stop + lower), first)
                for points, first in axis.spans(coordinate)
            )
        first = axis.start(coordinate) - axis.lower + lower
        start = max(first, 0)
        stop = min(first + axis.local_size(coordinate), axis.points + lower + upper)
        return (Span(range(start, max(start, stop)), start - first),)

    def _own(self, axis: DividedAxis, coordinate: int) -> range:
        """The own points of a process in the file, with those at the edges of the grid."""
        lower, upper = self.edges[axis.position]
        points = axis.distinct_points(coordinate)
        is_first, is_last = coordinate == 0, coordinate == axis.processes - 1
        start = points.start + lower * (not is_first)
        return range(start, points.stop + lower + upper * is_last)

    def _file_axis(self, axis: DividedAxis) -> FileAxis:
        starts = [self._own(axis, k).start for k in range(axis.processes)]
        points = axis.points + sum(self.edges[axis.position])
        return FileAxis(points, self.sizes[axis.position], tuple(starts))

    def largest(self) -> tuple[int, ...]:
        """The largest number of own points along each axis."""
        pairs = zip(self.division.shape, self.edges, strict=True)
        largest = [size + sum(edges) for size, edges in pairs]
        for axis in self.division.axes:
            counts = (len(self._own(axis, k)) for k in range(axis.processes))
            largest[axis.position] = max(counts)
        return tuple(largest)


class GridPlace(Place):
    """The place of an array that a grid of processes divides.

    Arguments:
        comm: The communicator, for messages that meet no others.
        plan: The plan.
        division: The division of the whole array.
        behind: The sizes of axes behind those of the plan.
        edges: For each axis, ghost cells that the file has at the edges of the grid.

    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        plan: GridPlan,
        division: Division,
        behind: tuple[int, ...],
        edges: tuple[tuple[int, int], ...],
    ) -> None:
        self.kind = plan._public_name
        self._comm, self._plan = comm, plan
        self._division, self._behind = division, behind
        self._rank = plan._grid.rank
        pairs = zip(division.shape, edges, strict=True)
        self.shape = (*(size + sum(pair) for size, pair in pairs), *behind)
        self._edges = edges
        self.edges = (*edges, *((0, 0) for _ in behind))

    def _regions(self, role: str, sizes: Sizes) -> _Regions:
        count = len(self._division.shape)
        return _Regions(role, self._division, self._edges, sizes[:count], self._behind)

    @override
    @property
    def largest(self) -> tuple[int, ...]:
        return (*self._regions("own", self.shape).largest(), *self._behind)

    @override
    def to_files(self, function: str, array: Host, sizes: Sizes) -> list[Block]:
        own, filed = (self._regions(role, sizes) for role in ("own", "files"))
        here, there = (regions.region(self._rank) for regions in (own, filed))
        start = tuple(spans[0].points.start for spans in there)
        if _points(here) == _points(there):
            return [Block(start, array[_index(here)])]
        block = np.empty(shape_of(there), array.dtype)
        self._move(array, own, block, filed)
        return [Block(start, block)]

    @override
    def from_files(self, function: str, read: Reader, sizes: Sizes, dtype: str) -> Host:
        filed, local = (self._regions(role, sizes) for role in ("files", "local"))
        here, there = (regions.region(self._rank) for regions in (filed, local))
        array = read([spans[0].points for spans in here])
        shape = (*self._division.local_shape(self._rank), *self._behind)
        axes = self._division.axes
        has_ghosts = any(axis.lower + axis.upper + axis.extra for axis in axes)
        if not has_ghosts and _points(here) == _points(there):
            return array
        part = np.zeros(shape, dtype)
        self._move(array, filed, part, local)
        return part

    def _move(self, array: Host, before: _Regions, result: Host, after: _Regions) -> None:
        call = Redistribution(self._plan._communicator, (before,), (after,))
        call.move_on_host(self._comm, [array], [result])


def _points(region: Region) -> list[range]:
    return [spans[0].points for spans in region] if all(len(s) == 1 for s in region) else []


def _index(region: Region) -> tuple[slice, ...]:
    """A region of one span along each axis, as an index of the array of its process."""
    return tuple(slice(s.first, s.first + len(s.points)) for (s,) in region)


class RowsPlace(Place):
    """The place of rows along the first axis, each of which has a position in the file.

    Arguments:
        kind: The kind of the plan.
        comm: The communicator, for messages that meet no others.
        positions: The position of each row of this process.
        rows: The index of these rows in the array of this process, None if they are all.
        size: The number of rows of the array of this process.
        starts: The first row of the file near each process.
        total: The number of rows of the file.
        shape: The shape of a row.

    """

    def __init__(
        self,
        kind: str,
        comm: MPI.Intracomm,
        positions: Host,
        rows: Host | slice,
        size: int,
        starts: tuple[int, ...],
        total: int,
        shape: tuple[int, ...],
        fill: Callable[[Host], None] | None = None,
    ) -> None:
        self.kind, self._comm, self._positions, self._rows = kind, comm, positions, rows
        self._size, self._starts, self._fill = size, starts, fill
        self.shape = (total, *shape)
        self.edges = ((0, 0),) * len(self.shape)

    @override
    @property
    def largest(self) -> tuple[int, ...]:
        pairs = zip(self._starts, (*self._starts[1:], self.shape[0]), strict=True)
        return (max(b - a for a, b in pairs), *self.shape[1:])

    def _axis(self, sizes: Sizes) -> FileAxis:
        return FileAxis(self.shape[0], sizes[0], self._starts)

    def _routes(self, axis: FileAxis) -> Routes:
        numbers = np.arange(len(self._positions), dtype=np.int32)
        return Routes(self._comm, numbers, axis.owners(self._positions))

    @override
    def to_files(self, function: str, array: Host, sizes: Sizes) -> list[Block]:
        axis = self._axis(sizes)
        owned = axis.owned(self._comm.Get_rank())
        routes = self._routes(axis)
        positions = routes.send(self._positions)
        rows = routes.send(array[self._rows])
        block = np.empty((len(owned), *self.shape[1:]), array.dtype)
        block[positions - owned.start] = rows
        return [Block((owned.start, *(0 for _ in self.shape[1:])), block)]

    @override
    def from_files(self, function: str, read: Reader, sizes: Sizes, dtype: str) -> Host:
        axis = self._axis(sizes)
        owned = axis.owned(self._comm.Get_rank())
        block = read([owned, *map(range, self.shape[1:])])
        routes = self._routes(axis)
        asked = routes.send(self._positions)
        array = np.zeros((self._size, *self.shape[1:]), dtype)
        own = np.empty((len(self._positions), *self.shape[1:]), dtype)
        own[routes.rows] = routes.answer(block[asked - owned.start])
        array[self._rows] = own
        if self._fill is not None:
            self._fill(array)
        return array

    def of_ids(self) -> RowsPlace:
        """The place of the ids of these rows."""
        place = copy.copy(self)
        place.shape, place.edges = self.shape[:1], self.edges[:1]
        return place


def rows_place(
    comm: MPI.Intracomm, count: int, size: int, total: int | None, shape: tuple[int, ...]
) -> RowsPlace:
    """The place of rows of which each process has its own number.

    All processes call this together. `total` is None, or the number that they have to be.
    """
    counts = comm.allgather(count)
    starts = tuple(int(n) for n in np.cumsum([0, *counts[:-1]]))
    if total is not None and sum(counts) != total:
        raise ValueError(
            f"files.Rows got {sum(counts)} rows as the sum of `count` of all processes, "
            f"expected the {total} rows of the file"
        )
    first = starts[comm.Get_rank()]
    return RowsPlace(
        "files.Rows",
        comm,
        np.arange(first, first + count),
        slice(0, count),
        size,
        starts,
        sum(counts),
        shape,
    )


def even_count(total: int, comm: MPI.Intracomm) -> int:
    """The number of rows of this process if all have the same, or one more."""
    share, rest = divmod(total, comm.Get_size())
    return share + (comm.Get_rank() < rest)


def unstructured_place(
    comm: MPI.Intracomm, plan: UnstructuredPlan, shape: tuple[int, ...]
) -> RowsPlace:
    """The place of the rows of an unstructured mesh, in the order of their points' ids.

    All processes call this together.
    """
    rows = plan._rows
    assert isinstance(rows, RankRows)
    neighborhood = rows.neighborhood

    def fill(array: Host) -> None:
        if array.size:
            points = array.view(np.uint8).reshape(neighborhood.size, -1)
            lists = neighborhood.ranks, neighborhood.sent, neighborhood.received
            update(comm, *lists, points)

    share = -(-rows.total // comm.Get_size())
    starts = tuple(min(n * share, rows.total) for n in range(comm.Get_size()))
    return RowsPlace(
        UnstructuredPlan._public_name,
        comm,
        np.asarray(rows.positions, np.int64),
        np.flatnonzero(rows.owned),
        rows.size,
        starts,
        rows.total,
        shape,
        fill,
    )


def own_ids(plan: UnstructuredPlan) -> Host | None:
    """The ids of the own rows of a plan, which rows of one point share."""
    rows = plan._rows
    assert isinstance(rows, RankRows)
    ids = rows.neighborhood.global_ids
    if ids is None:
        return None
    return np.repeat(ids[rows.neighborhood.owned], rows.block)


class ShardPlace(Place):
    """The place of an array that JAX has divided among the devices of several processes."""

    kind, divides_parts = "jax.sharding.Sharding", True

    def __init__(
        self,
        sharding: Sharding,
        shape: tuple[int, ...],
        behind: tuple[int, ...],
        edges: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.sharding, self.behind, self._shape = sharding, behind, shape
        self.shape = (*shape, *behind)
        self.edges = edges or ((0, 0),) * len(self.shape)

    @override
    @property
    def largest(self) -> tuple[int, ...]:
        return (*self.sharding.shard_shape(self._shape), *self.behind)

    def _owned(self) -> dict[Any, tuple[range, ...]]:
        """The shards that this process writes: of equal ones, the first device's."""
        first: dict[tuple[range, ...], Any] = {}
        indices: Mapping[Any, Any] = self.sharding.devices_indices_map(self._shape)
        for device in sorted(indices, key=lambda device: device.id):
            first.setdefault(_box(indices[device], self._shape), device)
        own = jax.process_index()
        return {device: box for box, device in first.items() if device.process_index == own}

    @override
    def to_files(self, function: str, array: Any, sizes: Sizes) -> list[Block]:
        owned, behind = self._owned(), (0,) * len(self.behind)
        return [
            Block((*(points.start for points in owned[device]), *behind), data)
            for device, data in array.items()
            if device in owned
        ]

    @override
    def from_files(self, function: str, read: Reader, sizes: Sizes, dtype: str) -> Any:
        def shard(index: tuple[slice, ...]) -> Host:
            pairs = zip(_box(index, self._shape), self.edges, strict=False)
            box = [range(part.start + low, part.stop + low) for part, (low, _) in pairs]
            return read([*box, *map(range, self.behind)])

        return shard


def _box(index: Sequence[slice], shape: tuple[int, ...]) -> tuple[range, ...]:
    return tuple(
        range(*part.indices(size)) for part, size in zip(index, shape, strict=True)
    )
