"""Chunks of arrays in files: their sizes, and which process writes and reads each one.

Chunks are regular, and parts of processes need not be. A chunk belongs to the process that
has its first point. So if chunks are as large as the largest part, each process has one at
most, and where all parts have one size, it is its part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from .leaves import Host

#: Size of a chunk in bytes beyond which it is divided.
LARGEST = 1 << 26

#: Sizes of a chunk along the axes of an array.
Sizes: TypeAlias = tuple[int, ...]


class Block(NamedTuple):
    """A part of an array of a file, which begins at this point."""

    start: tuple[int, ...]
    array: Host


class ChunkAxis(NamedTuple):
    """An axis of an array of a file, and the processes along it."""

    points: int
    chunk: int
    #: The first point of each process.
    starts: tuple[int, ...] = (0,)

    def owned(self, coordinate: int) -> range:
        """The points in the chunks of a process."""
        first, last = (
            min(-(-start // self.chunk) * self.chunk, self.points)
            for start in (*self.starts, self.points)[coordinate : coordinate + 2]
        )
        return range(first, last)

    def owners(self, points: Host) -> Host:
        """The process that has the chunk of each point."""
        firsts = [self.owned(n).start for n in range(len(self.starts))]
        # Of processes that begin with the same point, all but the last have none.
        return np.searchsorted(firsts, points, side="right") - 1


def default_sizes(parts: Sequence[int], itemsize: int) -> Sizes:
    """The sizes of chunks if nothing else is asked for.

    The first axes are cut first, so that the parts follow each other in memory.

    Arguments:
        parts: The largest part of a process along each axis.
        itemsize: The bytes of an element.

    """
    sizes = [max(size, 1) for size in parts]
    for axis in range(len(sizes)):
        count = math.ceil(math.prod(sizes) * itemsize / LARGEST)
        if count > 1:
            sizes[axis] = _cut(sizes[axis], count)
    return tuple(sizes)


def _cut(size: int, count: int) -> int:
    """The size of some pieces, or of up to twice as many if these are equal."""
    count = min(count, size)
    for pieces in range(count, 2 * count):
        if size % pieces == 0:
            return size // pieces
    return math.ceil(size / count)


def keys_in(
    block: Sequence[range], sizes: Sizes
) -> Iterator[tuple[tuple[int, ...], tuple[range, ...]]]:
    """The chunks that a box of points has a part of: their indices, and these parts."""
    ranges: list[list[tuple[int, range]]] = [
        [
            (
                index,
                range(
                    max(points.start, index * size), min(points.stop, (index + 1) * size)
                ),
            )
            for index in range(points.start // size, -(-points.stop // size))
        ]
        if len(points)
        else []
        for points, size in zip(block, sizes, strict=True)
    ]
    for combination in itertools.product(*ranges):
        indices, parts = zip(*combination, strict=True) if combination else ((), ())
        yield tuple(indices), tuple(parts)


def chunks_of(block: Block, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], Host]]:
    """The chunks of a block, which consists of whole ones, but at the end of the array."""
    box = box_of(block.start, block.array.shape)
    for index, part in keys_in(box, sizes):
        values = block.array[slices_in(part, block.start)]
        if values.shape != sizes:
            padded = np.zeros(sizes, values.dtype)
            padded[tuple(map(slice, values.shape))] = values
            values = padded
        yield index, values


def own_copy(values: Host) -> Host:
    """The values in memory that nothing else uses."""
    is_own = values.base is None and values.flags.owndata
    return values if is_own else values.copy()


def box_of(start: Sequence[int], shape: Sequence[int]) -> tuple[range, ...]:
    """The points of a block."""
    return tuple(range(a, a + size) for a, size in zip(start, shape, strict=True))


def slices_in(box: Sequence[range], start: Sequence[int]) -> tuple[slice, ...]:
    """A box as an index of an array that begins at this point."""
    pairs = zip(box, start, strict=True)
    return tuple(slice(points.start - a, points.stop - a) for points, a in pairs)
