"""Arrays that are divided in one way among processes, and then in another way.

Each process has a box of the whole array: a range along each axis. What it sends to another
one is what its box has in common with the box that the other one is to have.

On a mesh, where the program is equal on all processes, one axis with equal parts is divided
instead of another one. Then all processes send the same parts of their boxes to each rank,
one of which is their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..blocks.copies import Copy, View
from ..blocks.description import Description, Message
from ..blocks.exchange import BlockExchange
from ..halo.grid import part_of
from ..mpi.handles import Communicator
from ..mpi.tags import REDISTRIBUTION
from ..operations._arguments import like
from ..operations._eager import PlanCall
from ..operations.bcast import Bcast
from ..xla.dependence import depend
from ..xla.jax_compat import ShapedArray

Box = tuple[range, ...]


class Division(NamedTuple):
    """Which box of the whole array each process has."""

    #: The shape of the whole array.
    shape: tuple[int, ...]
    #: The number of processes along each axis of their grid, with ranks in row-major order.
    dims: tuple[int, ...]
    #: The axis of the array that each axis of the grid divides.
    axes: tuple[int, ...]
    #: The one process that has all of the array, if it is not divided.
    root: int | None = None

    def box(self, rank: int) -> Box:
        """The box of a process."""
        if self.root is not None:
            return tuple(range(size if rank == self.root else 0) for size in self.shape)
        box = list(map(range, self.shape))
        coordinates = np.unravel_index(rank, self.dims)
        for axis, processes, coordinate in zip(
            self.axes, self.dims, coordinates, strict=True
        ):
            box[axis] = part_of(self.shape[axis], processes, int(coordinate))
        return tuple(box)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        return tuple(map(len, self.box(rank)))


@dataclass(frozen=True)
class Redistribution(PlanCall):
    """A call that moves fields from one division to another one.

    Axes that the fields have before those of the whole array travel along.
    """

    name: ClassVar[str] = "redistribute"

    communicator: Communicator
    source: Division
    result: Division

    def call_in_program(self, leaves: Sequence[Array]) -> list[Array]:
        return BlockExchange(self.communicator, self._description(avals_of(leaves))).call(
            leaves
        )

    @property
    def _rank(self) -> int:
        """The own rank, or one that does the same as all others."""
        return 0 if self.communicator.is_on_mesh else self.communicator.rank

    def _description(self, fields: Sequence[ShapedArray]) -> Description:
        shape = self.result.local_shape(self._rank)
        results = [like(x, (*x.shape[: x.ndim - len(shape)], *shape)) for x in fields]
        return Description(
            tuple(fields),
            sent=self._messages(fields, self.source, self.result),
            received=self._messages(results, self.result, self.source),
            local=self._own_copies(fields, results),
            new=tuple(results),
        )

    def _messages(
        self, types: Sequence[ShapedArray], division: Division, other: Division
    ) -> tuple[Message, ...]:
        """The messages with those parts of the own box that others have."""
        box = division.box(self._rank)
        messages = []
        for rank in range(self.communicator.size):
            part = _common(box, other.box(rank))
            if part and (rank != self._rank or self.communicator.is_on_mesh):
                blocks = (_view(n, x, box, part) for n, x in enumerate(types))
                messages.append(Message(rank, REDISTRIBUTION, tuple(blocks)))
        return tuple(messages)

    def _own_copies(
        self, fields: Sequence[ShapedArray], results: Sequence[ShapedArray]
    ) -> tuple[tuple[Copy, ...], ...]:
        """The copies of what this process keeps."""
        before, after = self.source.box(self._rank), self.result.box(self._rank)
        staying = _common(before, after)
        if staying is None or self.communicator.is_on_mesh:
            return ()
        pairs = enumerate(zip(fields, results, strict=True))
        copies = (
            Copy(_view(n, field, before, staying), _view(n, result, after, staying))
            for n, (field, result) in pairs
        )
        return (tuple(copies),)


@dataclass(frozen=True)
class GatherCall(PlanCall):
    """A call of `gather`: an eager one is a program of its own, for all layouts alike."""

    name: ClassVar[str] = "pencil_gather"

    communicator: Communicator
    division: Division
    #: The one process that gets the whole arrays, or None where all do.
    root: int | None

    def call_in_program(self, leaves: Sequence[Array]) -> list[Array]:
        """The whole arrays. There are none where a process does not get them."""
        target, rank = self.root or 0, self.communicator.rank
        on_target = self.division._replace(root=target)
        move = Redistribution(self.communicator, self.division, on_target)
        whole = move.call_in_program(leaves)
        if self.root is not None:
            return whole if rank == target else []
        if rank != target:
            whole = list(map(self._buffer_after, whole))
        return Bcast(self.communicator, target).apply_to_leaves(whole)

    def _buffer_after(self, nothing: Array) -> Array:
        """Room for a whole array, after what this process has of it."""
        shape = self.division.shape
        lead = nothing.shape[: nothing.ndim - len(shape)]
        return depend(jnp.zeros((*lead, *shape), nothing.dtype), nothing)


def _common(first: Box, second: Box) -> Box | None:
    """What two boxes have in common, or None if that is nothing."""
    pairs = zip(first, second, strict=True)
    box = tuple(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs)
    return box if all(box) else None


def _view(array: int, x: ShapedArray, box: Box, part: Box) -> View:
    """A part of a box, in an array that has the box along its last axes."""
    ranges = (
        range(indices.start - whole.start, indices.stop - whole.start)
        for whole, indices in zip(box, part, strict=True)
    )
    before = map(range, x.shape[: x.ndim - len(box)])
    return View(array, x.shape, 0, (*before, *ranges))
