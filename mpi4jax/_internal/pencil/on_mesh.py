"""Layouts on a mesh of JAX's, for programs that are equal on all processes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..arguments.types import Array, Integer
from ..halo.grid import Grid
from ..mpi import handles
from ..mpi.meshes import axis_comm
from ..operations._eager import run_named
from .layout import Layout, T
from .redistribution import Division, Redistribution

NAME = "pencil.MeshLayout"


class MeshLayout(Layout):
    """How whole arrays are divided along the axes of a mesh, in a :func:`jax.shard_map`.

    All parts have the same size. Where an axis does not divide, the last ones have rows
    behind the end of the array, whose values do not matter.

    Arguments:
        mesh (jax.sharding.Mesh): A mesh with a device of each process.
        shape (Sequence[int]): The shape of the whole arrays.
        axes (Sequence[int]): For each axis of the mesh, the axis of the arrays that is
            divided along it.
        names (str or Sequence[str]): The axes of the mesh (defaults to all).

    """

    _public_name = NAME

    def __init__(
        self,
        mesh: jax.sharding.Mesh,
        shape: Sequence[int],
        axes: Sequence[int],
        *,
        names: str | Sequence[Hashable] | None = None,
    ) -> None:
        self._divide(Grid.of_mesh(NAME, mesh, names, None), shape, axes)
        #: The mesh.
        self.mesh = mesh

    @property
    def _names(self) -> tuple[Hashable, ...]:
        assert self._grid.names is not None
        return self._grid.names

    @property
    def spec(self) -> PartitionSpec:
        """How arrays are sharded, for :func:`jax.shard_map`."""
        return self._spec(self._names)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape of the whole arrays with the rows that fill up the last parts."""
        shape = list(self.shape)
        for axis, processes in zip(self.axes, self.dims, strict=True):
            shape[axis] = _padded(shape[axis], processes)
        return tuple(shape)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the parts."""
        shape = list(self.padded_shape)
        for axis, processes in zip(self.axes, self.dims, strict=True):
            shape[axis] //= processes
        return tuple(shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The program is equal on all processes, and does not know it."""
        raise NotImplementedError(f"{NAME}.slices: {_OTHERWISE}")

    def part_along(self, axis: int, values: np.ndarray) -> np.ndarray | Array:
        """What the process that runs the program has of values along an axis.

        Behind the end of the array, there are zeros.
        """
        axis %= len(self.shape)
        if axis not in self.axes:
            return values
        self._grid.check_program(f"{NAME}.part_along")
        n = self.axes.index(axis)
        parts = jnp.pad(values, (0, self.padded_shape[axis] - len(values)))
        parts = parts.reshape(self.dims[n], -1)
        return parts[jax.lax.axis_index(self._names[n])]

    def scatter(self, fields: T, *, root: Integer | None = None) -> T:
        """Whole arrays are sharded outside of the program: ``jax.device_put``."""
        raise NotImplementedError(f"{NAME}.scatter: {_OTHERWISE}")

    def gather(self, fields: T, *, root: Integer | None = None) -> T | None:
        """A sharded array is whole outside of the program."""
        raise NotImplementedError(f"{NAME}.gather: {_OTHERWISE}")

    def _key(self) -> tuple[object, ...]:
        return *super()._key(), self.mesh

    def _moved_to(self, function: str, to: Layout, leaves: list[Array]) -> list[Array]:
        self._grid.check_program(f"{NAME}.redistribute")
        here = list(self.axes)
        while here != list(to.axes):
            n, axis = _next_move(here, to.axes, len(self.shape))
            if leaves:
                leaves = self._moved_along(function, n, here[n], axis, leaves)
            here[n] = axis
        return leaves

    def _moved_along(
        self, function: str, n: int, divided: int, other: int, leaves: list[Array]
    ) -> list[Array]:
        """The parts of arrays that one axis of the mesh divides along another axis."""
        name, processes = self._names[n], self.dims[n]
        comm = axis_comm(self.mesh, name)
        ndim = len(self.shape)
        size, whole_size = self.shape[divided], _padded(self.shape[divided], processes)
        moved = []
        for x in leaves:
            padding = [(0, 0)] * x.ndim
            axis = x.ndim - ndim + other
            padding[axis] = (0, _padded(x.shape[axis], processes) - x.shape[axis])
            moved.append(jnp.pad(x, padding))
        shape = list(moved[0].shape[moved[0].ndim - ndim :])
        shape[divided] = whole_size
        source = Division(tuple(shape), (processes,), (divided,))
        operation = Redistribution(
            handles.communicator(f"{NAME}.redistribute", comm),
            source,
            source._replace(axes=(other,)),
        )
        results = run_named(function, operation, [moved])
        return [
            jax.lax.slice_in_dim(x, 0, size, axis=x.ndim - ndim + divided) for x in results
        ]


_OTHERWISE = (
    "the program is equal on all processes, and does not know which part it has. Shard "
    "whole arrays outside of it, with `spec`"
)


def _padded(size: int, processes: int) -> int:
    return math.ceil(size / processes) * processes


def _next_move(here: Sequence[int], there: Sequence[int], ndim: int) -> tuple[int, int]:
    """An axis of the mesh, and the axis that it is to divide next, which is not divided."""
    wrong = [n for n, axis in enumerate(there) if here[n] != axis]
    ready = [n for n in wrong if there[n] not in here]
    if ready:
        return ready[0], there[ready[0]]
    free = [axis for axis in range(ndim) if axis not in here]
    if not free:
        raise ValueError(
            f"{NAME}.redistribute got layouts that divide all axes in another order, "
            f"{list(here)} and {list(there)}, expected an axis that is not divided"
        )
    return wrong[0], free[0]
