"""Whole fields: how they are divided into parts with ghost cells, and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from ..arguments.types import Array, Scalar
from ..operations.allgather import allgather
from ..operations.gather import gather
from ..operations.scatter import scatter
from ..xla.dependence import depend
from ..xla.jax_compat import Tracer
from .axis import Axis

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


def scatter_field(
    x: Array,
    axes: Sequence[FieldAxis],
    root: int | None,
    fill_value: Scalar,
    comm: MPI.Intracomm,
) -> Array:
    """The part of this process of a whole field, with ghost cells.

    Arguments:
        x: The whole field. Where another process has it, its type is enough.
        axes: Its divided axes.
        root: The one process that has the field, or None where all do.
        fill_value: The value of ghost cells that the whole field does not have.
        comm: The communicator.

    """

    def take(x: Array, points: Points | Array, position: int) -> Array:
        return jnp.take(x, points, position, mode="fill", fill_value=fill_value)

    if root is None:
        for axis in axes:
            x = take(x, axis.own_points(), axis.position)
        return x
    if root == comm.Get_rank():
        for axis in axes:
            x = take(x, axis.padded_points(), axis.position)
        x = _split_parts(x, axes)
    else:
        shape = list(x.shape)
        for axis in axes:
            shape[axis.position] = len(axis.points(0))
        zeros = jnp.zeros(shape, jax.dtypes.canonicalize_dtype(x.dtype))
        x = depend(zeros, x) if isinstance(x, Tracer) else zeros
    x = scatter(x, root, comm=comm)
    for axis in axes:
        size = len(axis.own_points())
        x = jax.lax.slice_in_dim(x, 0, size, axis=axis.position)
    return x


def gather_field(
    x: Array, axes: Sequence[FieldAxis], root: int | None, comm: MPI.Intracomm
) -> Array | None:
    """The whole field, of which each process has a part, without ghost cells.

    It is None where a process does not get it: where there is a root, which is another one.
    """
    padding = [(0, 0)] * x.ndim
    for axis in axes:
        padding[axis.position] = (0, axis.largest_part - x.shape[axis.position])
    x = jnp.pad(x, padding)
    if root is None:
        x = allgather(x, comm=comm)
    else:
        x = gather(x, root, comm=comm)
        if root != comm.Get_rank():
            return None
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
