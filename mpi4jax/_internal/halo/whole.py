"""Whole fields: how they are divided into parts with ghost cells, and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.types import Array, ArrayLike
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall
from ..operations.allgather import AllGather
from ..operations.gather import Gather
from ..operations.scatter import Scatter
from ..xla.dependence import depend
from ..xla.jax_compat import Tracer
from .axis import Axis

#: A field in a tree: an array, or its type where another process has it.
Leaf: TypeAlias = ArrayLike | jax.ShapeDtypeStruct
#: Indices of points along an axis.
Points: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.integer[Any]]]


class FieldAxis(NamedTuple):
    """A divided axis of a whole field."""

    axis: Axis
    #: Its position in the array, not negative.
    position: int
    #: The number of cells, and of points that a staggered field has more.
    cells: int
    extra: int

    def points(self, coordinate: int) -> Points:
        """The point of the whole field for each one of a part, ghost cells included.

        Where the whole field has none, it is the number of all points.
        """
        axis, stop = self.axis, self.cells + self.extra
        part = axis.part(coordinate, self.cells)
        points = np.arange(part.start - axis.lower, part.stop + self.extra + axis.upper)
        if axis.is_periodic:
            return points % self.cells
        return np.where((points >= 0) & (points < stop), points, stop)

    def own_points(self) -> Points | Array:
        axis = self.axis
        if axis.coordinate is not None:
            return self.points(axis.coordinate)
        parts = [self.points(coordinate) for coordinate in range(axis.processes)]
        return jnp.asarray(parts)[axis.coordinate_on_mesh()]

    def padded_points(self) -> Points:
        """The points of all parts, which are padded to the size of the largest."""
        parts = [self.points(coordinate) for coordinate in range(self.axis.processes)]
        # The first part is the largest.
        size, stop = len(parts[0]), self.cells + self.extra
        return np.concatenate(
            [np.pad(part, (0, size - len(part)), constant_values=stop) for part in parts]
        )

    @property
    def largest_part(self) -> int:
        """The number of own points of the largest part."""
        return len(self.axis.part(0, self.cells)) + self.extra

    def joined_points(self) -> Points:
        """Where the points of the whole field are in parts that are padded to one size.

        A point that two processes have is that of the upper one.
        """
        counts = [
            len(self.axis.part(coordinate, self.cells))
            for coordinate in range(self.axis.processes)
        ]
        counts[-1] += self.extra
        starts = range(0, len(counts) * self.largest_part, self.largest_part)
        pairs = zip(starts, counts, strict=True)
        return np.concatenate([start + np.arange(count) for start, count in pairs])


@dataclass(frozen=True)
class ScatterCall(PlanCall):
    """A call of `scatter`: an eager one is a program of its own, for all plans alike."""

    name: ClassVar[str] = "halo_scatter"

    communicator: Communicator
    #: The divided axes of each field.
    axes: tuple[tuple[FieldAxis, ...], ...]
    #: The one process that has the fields, or None where all do.
    root: int | None

    def call_in_program(self, leaves: Sequence[Array], fill_value: Array) -> list[Array]:
        """The parts of this process of whole fields, with ghost cells.

        Arguments:
            leaves: The whole fields. Where another process has them, arrays of the shape
                of the largest part.
            fill_value: The value of ghost cells that the whole field does not have.

        """
        pairs = zip(leaves, self.axes, strict=True)
        return [self._part_of(x, axes, fill_value) for x, axes in pairs]

    def _part_of(self, x: Array, axes: Sequence[FieldAxis], fill_value: Array) -> Array:
        def take(x: Array, points: Points | Array, axis: FieldAxis) -> Array:
            taken = jnp.take(x, points, axis.position, mode="clip")
            if axis.axis.is_periodic:
                return taken
            has_point = jnp.asarray(points) < axis.cells + axis.extra
            shape = [1] * x.ndim
            shape[axis.position] = -1
            fill = fill_value.astype(x.dtype)
            return jnp.where(has_point.reshape(shape), taken, fill)

        if self.root is None:
            for axis in axes:
                x = take(x, axis.own_points(), axis)
            return x
        if self.root == self.communicator.rank:
            for axis in axes:
                x = take(x, axis.padded_points(), axis)
            x = _split_parts(x, axes)
        x = Scatter(self.communicator, self.root).apply(x)
        for axis in axes:
            size = len(axis.own_points())
            x = jax.lax.slice_in_dim(x, 0, size, axis=axis.position)
        return x


def buffer_of(x: Leaf, axes: Sequence[FieldAxis]) -> Array:
    """An array like the largest part of a whole field that another process has.

    JAX may differentiate a tracer, or map over it, here as where the field is.
    """
    shape = list(jnp.shape(x))
    for axis in axes:
        shape[axis.position] = len(axis.points(0))
    zeros = jnp.zeros(shape, jax.dtypes.canonicalize_dtype(jnp.result_type(x)))
    return depend(zeros, x) if isinstance(x, Tracer) else zeros


@dataclass(frozen=True)
class GatherCall(PlanCall):
    """A call of `gather`: an eager one is a program of its own, for all plans alike."""

    name: ClassVar[str] = "halo_gather"

    communicator: Communicator
    #: The divided axes of each whole field.
    axes: tuple[tuple[FieldAxis, ...], ...]
    #: The one process that gets the fields, or None where all do.
    root: int | None

    def call_in_program(self, leaves: Sequence[Array]) -> list[Array]:
        """The whole fields, of which each process has parts with ghost cells.

        There are none where a process does not get them.
        """
        whole = list(map(self._joined, leaves, self.axes))
        has_whole = self.root is None or self.root == self.communicator.rank
        return whole if has_whole else []

    def _joined(self, x: Array, axes: Sequence[FieldAxis]) -> Array:
        padding = [(0, 0)] * x.ndim
        for axis in axes:
            own = slice(axis.axis.lower, x.shape[axis.position] - axis.axis.upper)
            x = jax.lax.slice_in_dim(x, own.start, own.stop, axis=axis.position)
            padding[axis.position] = (0, axis.largest_part - x.shape[axis.position])
        x = jnp.pad(x, padding)
        if self.root is None:
            x = AllGather(self.communicator).apply(x)
        else:
            x = Gather(self.communicator, self.root).apply(x)
            if self.root != self.communicator.rank:
                return x
        x = _join_parts(x, axes)
        for axis in axes:
            x = jnp.take(x, axis.joined_points(), axis.position)
        return x


def _split_parts(x: Array, axes: Sequence[FieldAxis]) -> Array:
    """A stack of the parts, by rank, of an array that has them side by side."""
    processes = {axis.position: axis.axis.processes for axis in axes}
    shape: list[int] = []
    process_axes: dict[int, int] = {}
    for position, size in enumerate(x.shape):
        if position in processes:
            process_axes[position] = len(shape)
            shape += [processes[position], size // processes[position]]
        else:
            shape.append(size)
    front = [process_axes[axis.position] for axis in axes]
    x = jnp.moveaxis(x.reshape(shape), front, range(len(front)))
    return jax.lax.collapse(x, 0, len(front))


def _join_parts(x: Array, axes: Sequence[FieldAxis]) -> Array:
    """The array that has the parts of a stack side by side."""
    x = x.reshape(*(axis.axis.processes for axis in axes), *x.shape[1:])
    index = {axis.position: n for n, axis in enumerate(axes)}
    # Each axis of processes goes in front of that of their cells.
    order: list[int] = []
    shape: list[int] = []
    for position, size in enumerate(x.shape[len(axes) :]):
        if position in index:
            order.append(index[position])
            size *= axes[index[position]].axis.processes
        order.append(len(axes) + position)
        shape.append(size)
    return x.transpose(order).reshape(shape)
