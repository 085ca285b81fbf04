"""Division of a whole array among the processes of a grid.

A division is the one description of where an array lives: its shape, and for each process
the points that it has, with ghosts around them if there are any. The parts of processes
differ by at most one cell, and the larger ones come first. On a mesh of JAX's, where they
have the same size, the last ones are padded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from ..arguments.types import Array
from ..mpi.handles import Communicator

#: Indices of points along an axis.
Points: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.integer[Any]]]


class Span(NamedTuple):
    """Consecutive points that a process has along an axis."""

    #: The points in the whole array.
    points: range
    #: Index of the first one in the part of the process.
    first: int


Region: TypeAlias = tuple[tuple[Span, ...], ...]
"""The points of a process: spans along each axis of the whole array."""


class DividedAxis(NamedTuple):
    """An axis of a whole array that is divided among processes."""

    #: Position in arrays, counted from the end: -1 is the last axis.
    position: int
    cells: int
    processes: int
    #: Numbers of ghost cells on the lower and the upper side.
    lower: int = 0
    upper: int = 0
    is_periodic: bool = False
    #: Number of points that a staggered array has more than cells: neighbors share them.
    extra: int = 0
    #: Whether all parts have the same size: on a mesh.
    is_even: bool = False

    @property
    def points(self) -> int:
        """Number of points of the whole array."""
        return self.cells + self.extra

    @property
    def largest(self) -> int:
        """Number of cells of the largest part."""
        return math.ceil(self.cells / self.processes)

    def start(self, coordinate: Any) -> Any:
        """First cell of a process, whose coordinate may be an array."""
        if self.is_even:
            return coordinate * self.largest
        share, rest = divmod(self.cells, self.processes)
        return coordinate * share + min(coordinate, rest)

    def cells_of(self, coordinate: int) -> range:
        """The cells of a process."""
        stop = self.start(coordinate + 1)
        return range(min(self.start(coordinate), self.cells), min(stop, self.cells))

    def local_cells(self, coordinate: int) -> int:
        """Number of cells in the array of a process, with padding."""
        return self.largest if self.is_even else len(self.cells_of(coordinate))

    def local_size(self, coordinate: int) -> int:
        """Number of points of the array of a process, with ghosts and padding."""
        return self.lower + self.local_cells(coordinate) + self.extra + self.upper

    def points_at(self, coordinate: int | Array) -> Points | Array:
        """The points of a process, whose coordinate may be an array."""
        if isinstance(coordinate, int):
            return self.local_points(coordinate)
        parts = [self.local_points(n) for n in range(self.processes)]
        return jnp.asarray(np.array(parts))[coordinate]

    def local_points(self, coordinate: int) -> Points:
        """Point of the whole array for each point of a part, ghosts included.

        Where the whole array has none, the number of its points.
        """
        first = self.start(coordinate) - self.lower
        points = np.arange(first, first + self.local_size(coordinate))
        if self.is_periodic:
            return points % max(self.cells, 1)
        return np.where((points >= 0) & (points < self.points), points, self.points)

    def spans(self, coordinate: int) -> tuple[Span, ...]:
        """The points of a part, ghosts included."""
        points = self.local_points(coordinate)
        is_end = (np.diff(points) != 1) | (points[1:] == self.points)
        ends = np.flatnonzero(is_end) + 1
        bounds = itertools.pairwise((0, *map(int, ends), len(points)))
        spans = (
            Span(range(int(points[begin]), int(points[begin]) + end - begin), begin)
            for begin, end in bounds
            if end > begin
        )
        return tuple(span for span in spans if span.points.start < self.points)

    def distinct_points(self, coordinate: int) -> range:
        """The points of a process without those that the next process has as well."""
        cells = self.cells_of(coordinate)
        is_last = coordinate == self.processes - 1
        return range(cells.start, cells.stop + self.extra * is_last)

    @property
    def joined_points(self) -> Points:
        """Position of each point in parts that are padded to one size, side by side."""
        size = self.largest + self.extra
        counts = [len(self.distinct_points(n)) for n in range(self.processes)]
        return np.concatenate(
            [n * size + np.arange(count) for n, count in enumerate(counts)]
        )


class Division(NamedTuple):
    """Shape of a whole array, and the axes that are divided among processes.

    Arrays may have more axes in front of those of the whole array.
    """

    shape: tuple[int, ...]
    #: The divided axes, one for each axis of the grid, in whose row-major order ranks are.
    axes: tuple[DividedAxis, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """Number of processes along each axis of the grid."""
        return tuple(axis.processes for axis in self.axes)

    def coordinates(self, rank: int) -> list[int]:
        """The coordinates of a process along the divided axes."""
        return list(map(int, np.unravel_index(rank, self.dims)))

    def _axes_of(self, rank: int) -> Iterator[tuple[DividedAxis, int]]:
        """The divided axes, each with the coordinate of a process along it."""
        return zip(self.axes, self.coordinates(rank), strict=True)

    def points(
        self, communicator: Communicator, *coordinates: Array
    ) -> dict[int, Points | Array]:
        """The points of this process, whose coordinates a program on a mesh computes."""
        at: Sequence[int | Array] = coordinates or self.coordinates(communicator.rank)
        ndim, pairs = len(self.shape), zip(self.axes, at, strict=True)
        return {axis.position + ndim: axis.points_at(n) for axis, n in pairs}

    def distinct_region(self, rank: int) -> Region:
        """The points of a process: each point of the whole array has one process."""
        region = [*whole_region(self.shape)]
        for axis, coordinate in self._axes_of(rank):
            region[axis.position] = (Span(axis.distinct_points(coordinate), 0),)
        return tuple(region)

    def local_region(self, rank: int) -> Region:
        """The points of the array of a process, ghosts included."""
        region = [*whole_region(self.shape)]
        for axis, coordinate in self._axes_of(rank):
            region[axis.position] = axis.spans(coordinate)
        return tuple(region)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of the array of a process, with ghosts and padding."""
        shape = [*self.shape]
        for axis, coordinate in self._axes_of(rank):
            shape[axis.position] = axis.local_size(coordinate)
        return tuple(shape)


def whole_region(shape: Sequence[int]) -> Region:
    """The points of a process that has the whole array."""
    return tuple((Span(range(size), 0),) for size in shape)


def no_region(shape: Sequence[int]) -> Region:
    """The points of a process that has nothing of the array."""
    return tuple((Span(range(0), 0),) for _ in shape)


def shape_of(region: Region) -> tuple[int, ...]:
    """Shape of an array that consists of a region."""
    return tuple(sum(len(span.points) for span in spans) for spans in region)
