"""Arrays that are divided in one way among processes, and then in another way.

Each process has a box of the whole array: a range along each axis. What it sends to another
one is what its box has in common with the box that the other one is to have.

On a mesh, where the program is equal on all processes, one axis with equal parts is divided
instead of another one. Then all processes send the same parts of their boxes to each rank,
one of which is their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..arguments.types import Array
from ..halo.grid import part_of
from ..halo.slabs import FIRST_TAG
from ..moved.copies import Copy, CopyList, View
from ..moved.sides import Side
from ..mpi.handles import Communicator
from ..operations._arguments import like
from ..operations._eager import ArrayOrLeaves, PlanCall, evaluate
from ..operations._operation import Operation, as_primitive
from ..operations._transposes import (
    Jvp,
    TransposedOperand,
    inexact_tangents,
    tangents_of,
)
from ..operations.bcast import Bcast
from ..operations.exchange import Exchange
from ..xla.dependence import depend
from ..xla.jax_compat import (
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    lower_part,
    lower_with,
)

#: The tag of all messages, which halos, index lists and particles don't have.
TAG = FIRST_TAG - 3

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


@as_primitive
@dataclass(frozen=True)
class Redistribution(Operation):
    """Moves what each process has of one division to those that have it in another one.

    The operands are fields. Axes that they have before those of the whole array travel
    along. JAX knows the fields, and the handler has an array for each message.
    """

    source: Division
    result: Division

    name = "redistribute"
    operands = ("fields",)
    is_collective = False
    takes_leaves = True

    def check_avals(self, function: str, *avals: ShapedArray) -> None:
        for aval in avals:
            self.check_dtype(function, "fields", aval.dtype)

    @property
    def _rank(self) -> int:
        """The own rank, or one that does the same as all others."""
        return 0 if self.communicator.is_on_mesh else self.communicator.rank

    def result_avals(self, *avals: ShapedArray) -> list[ShapedArray]:
        shape = self.result.local_shape(self._rank)
        return [like(x, (*x.shape[: x.ndim - len(shape)], *shape)) for x in avals]

    def apply_to_leaves(self, *operands: ArrayOrLeaves) -> list[Array]:
        (leaves,) = operands
        return self.bind(*leaves)

    def evaluate(self, *operands: Array) -> list[Array]:
        return evaluate(self, [list(operands)]) or []

    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        results = self.bind(*primals)
        pushed = inexact_tangents(primals, tangents)
        return results, tangents_of(results, self.bind(*pushed) if pushed else [])

    def transpose(self, *args: TransposedOperand) -> tuple[Array, ...]:
        cotangents = args[: len(args) // 2]
        back = Redistribution(self.communicator, source=self.result, result=self.source)
        return tuple(back.bind(*cotangents))

    def lower(self, ctx: LoweringContext, *operands: Value) -> Sequence[Value]:
        fields, results = ctx.avals_in, ctx.avals_out
        sent = self._side(fields, self.source, self.result)
        received = self._side(results, self.result, self.source)
        own = self._own_copies(fields, results, first=len(fields) + len(sent.types))
        copies = (*itertools.starmap(Copy, sent.parts), *own)
        packing = CopyList((copies,), appended=(*sent.types, *results))
        values = lower_with(ctx, lambda *x: packing.apply(x), operands, fields)
        exchange = Exchange(self.communicator, sent.messages, received.messages)
        arrived = lower_part(
            ctx,
            exchange.lower,
            # Nothing is left as it is, so what is received needs no operands.
            [*values[len(fields) : -len(results)], *received.types],
            avals_in=[*sent.types, *received.types],
            avals_out=received.types,
        )
        unpacking = received.unpacking()
        types = [*results, *received.types]
        values = [*values[-len(results) :], *arrived]
        return lower_with(ctx, lambda *x: unpacking.apply(x), values, types)

    def _side(
        self, types: Sequence[ShapedArray], division: Division, other: Division
    ) -> Side:
        """The messages with those parts of the own box that others have."""
        box = division.box(self._rank)
        parts = {
            rank: part
            for rank in range(self.communicator.size)
            if (rank != self._rank or self.communicator.is_on_mesh)
            and (part := _common(box, other.box(rank)))
        }
        pairs = list(parts.items())

        def view(message: int, field: int) -> View:
            return _view(field, types[field], box, pairs[message][1])

        return Side(types, list(parts), TAG, view)

    def _own_copies(
        self, fields: Sequence[ShapedArray], results: Sequence[ShapedArray], first: int
    ) -> Iterator[Copy]:
        """The copies of what this process keeps, to the results from an index on."""
        before, after = self.source.box(self._rank), self.result.box(self._rank)
        staying = _common(before, after)
        if staying is None or self.communicator.is_on_mesh:
            return
        for n, (field, result) in enumerate(zip(fields, results, strict=True)):
            source = _view(n, field, before, staying)
            yield Copy(source, _view(first + n, result, after, staying))


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
        whole = move.bind(*leaves)
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
