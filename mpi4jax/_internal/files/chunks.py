"""Files of arrays and their chunks: the sizes, and which process writes and reads each one.

All files of an array have one size, and all its chunks; parts of processes need not. A file
belongs to the process that has its first point. So if files are as large as the largest
part, each process has one at most, and where all parts have one size, too, it is its part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .leaves import Host

#: Size of a chunk in bytes beyond which it is divided.
LARGEST = 1 << 26

#: How many times more pieces of an axis there may be so that their size divides it.
_MORE_PIECES = 64
#: Largest number of elements of a slab that has several chunks.
_SLAB = 1 << 18

#: Sizes of a chunk along the axes of an array.
Sizes: TypeAlias = tuple[int, ...]


class Storage(NamedTuple):
    """How an array is stored: in files of one or several chunks."""

    #: The shape of the part in a file, which consists of whole chunks.
    file: Sizes
    #: The shape of a chunk.
    chunk: Sizes
    #: The compression of chunks, empty for none.
    compression: str = ""

    @property
    def is_sharded(self) -> bool:
        """Whether files have several chunks: they are shards, as Zarr calls it."""
        return self.file != self.chunk

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks of a file along each axis."""
        return tuple(a // b for a, b in zip(self.file, self.chunk, strict=True))

    def slabs_in(
        self, box: Sequence[range]
    ) -> Iterator[tuple[list[range], tuple[range, ...]]]:
        """The slabs of a box, which one call reads or writes: ranges of chunks, and points.

        A slab has as many small chunks as fit a cache, or one large chunk.
        """
        sizes = [*self.chunk]
        for axis in reversed(range(len(sizes))):
            size, sizes[axis] = sizes[axis], self.file[axis]
            if math.prod(sizes) > _SLAB:
                sizes[axis] = size
        for _, points in keys_in(box, tuple(sizes)):
            pairs = zip(points, self.chunk, strict=True)
            yield [range(a.start // n, -(-a.stop // n)) for a, n in pairs], points

    def split(self, values: Host) -> Host:
        """The chunks of values: axes that count chunks, and then those of points in one.

        Zeros fill up chunks that are not whole.
        """
        whole = round_up(values.shape, self.chunk)
        if values.shape != whole:
            padded = np.zeros(whole, values.dtype)
            padded[tuple(map(slice, values.shape))] = values
            values = padded
        pairs = [(n // size, size) for n, size in zip(whole, self.chunk, strict=True)]
        split = values.reshape([n for pair in pairs for n in pair])
        axes = range(split.ndim)
        return np.ascontiguousarray(split.transpose(*axes[::2], *axes[1::2]))

    def join(self, chunks: Host) -> Host:
        """The values of these chunks, with the zeros that fill them up."""
        axes, count = range(chunks.ndim), chunks.ndim // 2
        pairs = zip(axes[:count], axes[count:], strict=True)
        split = chunks.transpose([axis for pair in pairs for axis in pair])
        sizes = zip(chunks.shape[:count], self.chunk, strict=True)
        return split.reshape([n * size for n, size in sizes])


class Block(NamedTuple):
    """A part of a stored array: its first point, and its values."""

    start: tuple[int, ...]
    array: Host


class FileAxis(NamedTuple):
    """An axis of a stored array, and the processes along it."""

    points: int
    #: The size of a file, or of a piece that one process reads.
    file: int
    #: The first point of each process.
    starts: tuple[int, ...] = (0,)

    def owned(self, coordinate: int) -> range:
        """The points in the files of a process."""
        first, last = (
            min(-(-start // self.file) * self.file, self.points)
            for start in (*self.starts, self.points)[coordinate : coordinate + 2]
        )
        return range(first, last)

    def owners(self, points: Host) -> Host:
        """The process that has the file of each point."""
        firsts = [self.owned(n).start for n in range(len(self.starts))]
        # Of processes that begin with the same point, all but the last have none.
        return np.searchsorted(firsts, points, side="right") - 1


def default_sizes(
    parts: Sequence[int], itemsize: int, *, divides_parts: bool = False
) -> Sizes:
    """The sizes of chunks if nothing else is asked for.

    The first axes are cut first, so that the parts follow each other in memory.

    Arguments:
        parts: The largest part of a process along each axis.
        itemsize: The bytes of an element.
        divides_parts: Whether the sizes have to divide those of the parts.

    """
    sizes = [max(size, 1) for size in parts]
    for axis in range(len(sizes)):
        count = math.ceil(math.prod(sizes) * itemsize / LARGEST)
        if count > 1:
            sizes[axis] = _cut(sizes[axis], count, divides=divides_parts)
    return tuple(sizes)


def _cut(size: int, count: int, *, divides: bool) -> int:
    """The size of pieces of an axis, of which there are at least as many as `count`.

    They are equal where a few more can be. Otherwise, the last one is smaller, or, if their
    size has to divide that of the axis, there is one.
    """
    count = min(count, size)
    for pieces in range(count, _MORE_PIECES * count if divides else 2 * count):
        if size % pieces == 0:
            return size // pieces
    return size if divides else math.ceil(size / count)


def keys_in(
    box: Sequence[range], sizes: Sizes
) -> Iterator[tuple[tuple[int, ...], tuple[range, ...]]]:
    """Cut a box at multiples of some sizes: the index of each piece, and its points."""
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
        for points, size in zip(box, sizes, strict=True)
    ]
    for combination in itertools.product(*ranges):
        indices, parts = zip(*combination, strict=True) if combination else ((), ())
        yield tuple(indices), tuple(parts)


def files_of(block: Block, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], Host]]:
    """The files of a block, which has whole ones, but at the end of the array."""
    box = box_of(block.start, block.array.shape)
    for index, part in keys_in(box, sizes):
        yield index, part_of(block.array, part, block.start)


def round_up(sizes: Sequence[int], unit: Sizes) -> Sizes:
    """The sizes, rounded up to multiples of a unit: one at least."""
    pairs = zip(sizes, unit, strict=True)
    return tuple(max(math.ceil(size / n), 1) * n for size, n in pairs)


def own_copy(values: Host) -> Host:
    """The values in memory that nothing else uses."""
    is_own = values.base is None and values.flags.owndata
    return values if is_own else values.copy()


def box_of(start: Sequence[int], shape: Sequence[int]) -> tuple[range, ...]:
    """The points of a block."""
    return tuple(range(a, a + size) for a, size in zip(start, shape, strict=True))


def part_of(array: Host, box: Sequence[range], start: Iterable[int]) -> Host:
    """The values of a box, as a view of an array that begins at this point.

    The array may have more axes behind.
    """
    pairs = zip(box, start, strict=True)
    within = (slice(points.start - a, points.stop - a) for points, a in pairs)
    index: Any = *within, ...  # also without axes an array
    part: Host = array[index]
    return part
