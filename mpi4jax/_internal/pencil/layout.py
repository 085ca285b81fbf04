"""Layouts: how a whole array is divided among the processes of a grid."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.checks import integers, reject
from ..arguments.types import Array, Integer, PyTree, Unchecked
from ..grids.division import DividedAxis, Division
from ..grids.grid import Grid
from ..grids.plan import GridPlan
from ..grids.redistribution import Distribution, Redistribution
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.meshes import axis_comm, world_rank
from ..operations._eager import on_own_devices, run_named
from ..whole import Leaf, part_along

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

NAME = "pencil.Layout"


class Layout(GridPlan):
    """How whole arrays are divided among the processes of a grid.

    Each process has a part of every array. A layout is created once. This sends no
    messages.

    Arguments:
        comm (mpi4py.MPI.Cartcomm or jax.sharding.Mesh): A communicator made by
            ``Create_cart``, or a mesh for arrays in a :func:`jax.shard_map`.
        shape (Sequence[int]): The shape of the whole arrays.
        axes (Sequence[int]): For each axis of the grid of processes, the axis of ``shape``
            that is divided along it. Negative numbers count from the last axis of an array,
            as for all plans.
        names (str or Sequence[str]): Of a mesh, the axes of the grid (defaults to all).

    The parts differ by at most one row, and the larger ones come first, as in
    :class:`mpi4jax.halo.Plan`. If there are more processes than rows, some have none. On a
    mesh, all parts have the same size: where an axis does not divide evenly, the last ones
    have rows behind the end of the array, whose values do not matter.

    Fields may have any type, and additional axes, before those of the layout.
    """

    _public_name = NAME
    #: The shape of the whole arrays.
    shape: tuple[int, ...]
    #: The number of processes along each axis of the grid.
    dims: tuple[int, ...]
    #: The axis that is divided along each axis of the grid.
    axes: tuple[int, ...]
    #: The mesh, if the layout is on one.
    mesh: jax.sharding.Mesh | None

    def __init__(
        self,
        comm: MPI.Cartcomm | jax.sharding.Mesh,
        shape: Sequence[int],
        axes: Sequence[int],
        *,
        names: str | Sequence[Hashable] | None = None,
    ) -> None:
        self._grid = grid = Grid.of(NAME, comm, names)
        self._communicator = handles.communicator(NAME, grid.comm)
        self.mesh = comm if isinstance(comm, jax.sharding.Mesh) else None
        self.dims = grid.dims
        self._divide(shape, axes)

    def _divide(self, shape: Sequence[int], axes: Sequence[int]) -> None:
        self.shape = integers(NAME, "shape", shape)
        if min(self.shape, default=0) < 0:
            raise ValueError(
                f"{NAME} got {self.shape} for argument `shape`, expected no negative sizes"
            )
        ndim, positions = len(self.shape), integers(NAME, "axes", axes)
        self.axes = tuple(axis % ndim for axis in positions if -ndim <= axis < ndim)
        is_complete = len(positions) == len(self.axes) == len(self.dims)
        if not is_complete or len(set(self.axes)) < len(self.axes):
            raise ValueError(
                f"{NAME} got {list(positions)} for argument `axes`, expected a different "
                f"one of the {ndim} axes of `shape` for each of the {len(self.dims)} axes "
                "of the grid of processes"
            )
        self._division = _division(
            self.shape, self.dims, self.axes, is_even=self._is_on_mesh
        )

    def _key(self) -> tuple[object, ...]:
        """The values by which layouts compare."""
        return self._communicator, self.mesh, self._grid.names, self._division

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._key() == other._key()

    @override
    def __hash__(self) -> int:
        return hash(self._key())

    @override
    def __repr__(self) -> str:
        return f"<{NAME}: {self.shape}, axes {self.axes} over {self.dims} processes>"

    def with_shape(self, shape: Sequence[int]) -> Self:
        """The layout of arrays of another shape, divided along the same axes."""
        return self._divided("with_shape", shape, self.axes)

    def with_axes(self, axes: Sequence[int]) -> Self:
        """The layout of the same arrays, divided along other axes."""
        return self._divided("with_axes", self.shape, axes)

    def _divided(self, function: str, shape: Sequence[int], axes: Sequence[int]) -> Self:
        self._communicator_of(f"{NAME}.{function}")
        layout = object.__new__(type(self))
        layout.__dict__.update(self.__dict__)
        layout._divide(shape, axes)
        return layout

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part of this process."""
        return self._division.local_shape(self._grid.rank)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape of the parts of all processes side by side: on a mesh, with padding."""
        shape = [*self.shape]
        for axis in self._division.axes if self._is_on_mesh else ():
            shape[axis.position] = axis.largest * axis.processes
        return tuple(shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part of this process, as an index of the whole array.

        On a mesh, a program does not know its part before it runs: :meth:`part` takes
        parts there.
        """
        if self._is_on_mesh:
            raise ValueError(
                f"{NAME}.slices was read of a layout on a mesh, where one program runs for "
                "all parts, expected a layout of a communicator. On a mesh, take parts by "
                f"{NAME}.part or scatter"
            )
        region = self._division.distinct_region(self._communicator.rank)
        return tuple(slice(span.points.start, span.points.stop) for (span,) in region)

    def part(self, values: Unchecked) -> np.ndarray | Array:
        """The part of this process of values that all processes have, such as coordinates.

        An array of NumPy's stays one, but on a mesh, where parts are padded with zeros.

        Arguments:
            values: An array with the axes of the layout. Sizes may be 1, and stay so: the
                part broadcasts with that of an array.

        """
        function = f"{NAME}.part"
        sizes = list(zip(np.shape(values), self.shape, strict=False))
        if np.ndim(values) != len(self.shape) or any(n not in (1, m) for n, m in sizes):
            raise ValueError(
                f"{function} got an array of shape {np.shape(values)}, expected "
                f"{self.shape}, or 1 in place of any size"
            )
        along = [axis for axis in self.axes if sizes[axis][0] > 1]
        if not self._is_on_mesh:
            slices = enumerate(self.slices)
            return values[tuple(s if axis in along else slice(None) for axis, s in slices)]
        points = self._division.points(self._communicator, *self._operands(function))
        for axis in along:
            values = part_along(values, axis, points[axis])
        return values

    def sharding(self, mesh: jax.sharding.Mesh | None = None) -> NamedSharding:
        """How JAX shards an array of which each process has its part of the layout.

        With it, :func:`jax.make_array_from_process_local_data` makes a sharded array of the
        parts of all processes. ``array.addressable_data(0)`` is that of this one.

        Arguments:
            mesh (jax.sharding.Mesh): A mesh with the processes of the layout as its
                devices, in the same grid (defaults to the layout's own mesh). They have to
                divide the sizes evenly.

        """
        mesh = self.mesh if mesh is None else mesh
        if mesh is None:
            reject(f"{NAME}.sharding", "mesh", "a jax.sharding.Mesh", mesh)
        ranks = [world_rank(device) for device in mesh.devices.flat]
        members = list(self._communicator.members)
        if mesh.devices.shape != self.dims or ranks != members:
            raise ValueError(
                f"{NAME}.sharding got a mesh of {mesh.devices.shape} devices of the "
                f"processes {ranks} for argument `mesh`, expected those of the layout's "
                f"communicator, {self.dims} and {members}"
            )
        if any(self.shape[n] % size for n, size in zip(self.axes, self.dims, strict=True)):
            raise ValueError(
                f"{NAME}.sharding was called for {self}, expected sizes that are divided "
                "evenly, as JAX shards arrays in equal parts"
            )
        return NamedSharding(mesh, self._spec(mesh.axis_names))

    @property
    def spec(self) -> PartitionSpec:
        """How arrays are sharded on the layout's mesh, for :func:`jax.shard_map`."""
        if self._grid.names is None:
            raise ValueError(
                f"{NAME}.spec was read of a layout of a communicator, expected one on a "
                "mesh"
            )
        return self._spec(self._grid.names)

    def _spec(self, names: Sequence[Hashable]) -> PartitionSpec:
        """How arrays are sharded over these axes of a mesh."""
        by_axis = dict(zip(self.axes, names, strict=True))
        return PartitionSpec(*(by_axis.get(axis) for axis in range(len(self.shape))))

    @overload
    def scatter(self, fields: Callable[[], T], *, root: None = None) -> T: ...

    @overload
    def scatter(self, fields: T, *, root: Integer | None = None) -> T: ...

    @on_own_devices
    def scatter(self, fields: PyTree, *, root: Integer | None = None) -> PyTree:
        """The parts of this process of whole fields.

        Arguments:
            fields: An array, or a tree of arrays, on all processes. Or a function without
                arguments that computes these, of which each process computes its part only.
            root (int): The one process that has them, if not all do. On the others, only
                shapes and dtypes are used, so they may pass
                :class:`jax.ShapeDtypeStruct` instead of arrays. For derivatives and maps,
                all processes pass arrays that are differentiated or mapped over.

        """
        return self._scatter(fields, root)

    @on_own_devices
    def redistribute(self, fields: T, to: Layout) -> T:
        """Divide fields in another way.

        All fields together are one message for each process that gets something.

        Arguments:
            fields: An array, or a tree of arrays: the parts of this process.
            to: The layout of the result, of arrays of the same shape on the same
                processes.

        Returns:
            The parts of this process in the other layout.

        """
        if not isinstance(to, Layout):
            reject(f"{NAME}.redistribute", "to", "a pencil.Layout", to)
        if to._is_on_mesh != self._is_on_mesh:
            raise ValueError(
                f"{NAME}.redistribute got {to} for argument `to`, expected layouts of "
                "communicators, or two on the same mesh"
            )
        if to.shape != self.shape:
            raise ValueError(
                f"{NAME}.redistribute got a layout of shape {to.shape} for argument `to`, "
                f"expected one of the shape of this layout, {self.shape}"
            )
        if to._communicator.members != self._communicator.members:
            raise ValueError(
                f"{NAME}.redistribute got a layout of other processes for argument `to`, "
                "expected one of the same processes in the same order"
            )
        function = f"{NAME}.redistribute"
        leaves, structure = self._leaves_of(function, fields)
        return structure.unflatten(self._moved_to(function, to, leaves))

    def _moved_to(self, function: str, to: Layout, leaves: list[Array]) -> list[Array]:
        if not self._is_on_mesh:
            communicator = self._communicator
            return _moved(function, communicator, leaves, self._division, to._division)
        self._grid.check_program(function)
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
        assert self.mesh is not None
        assert self._grid.names is not None
        dims, ndim = (self.dims[n],), len(self.shape)
        padded = []
        for x in leaves:
            padding = [(0, 0)] * x.ndim
            padding[other - ndim] = (0, -x.shape[other - ndim] % dims[0])
            padded.append(jnp.pad(x, padding))
        shape = [*padded[0].shape[padded[0].ndim - ndim :]]
        shape[divided] *= dims[0]
        before, after = (_division(tuple(shape), dims, [axis]) for axis in (divided, other))
        comm = handles.communicator(function, axis_comm(self.mesh, self._grid.names[n]))
        size = self.shape[divided]
        return [
            jax.lax.slice_in_dim(x, 0, size, axis=divided - ndim)
            for x in _moved(function, comm, padded, before, after)
        ]

    def _leaves_of(self, function: str, fields: PyTree) -> tuple[list[Array], PyTreeDef]:
        """The fields, which have to be parts of this process."""
        self._communicator_of(function)
        tree = Tree("fields", fields)
        leaves = []
        for name, x in tree.jax_arrays(function):
            self._division_of(function, name, x, self.local_shape)
            leaves.append(x)
        return leaves, tree.structure

    @override
    def _part_division(self, function: str, name: str, x: Array) -> Division:
        return self._division_of(f"{NAME}.{function}", name, x, self.local_shape)

    @override
    def _whole_division(self, function: str, name: str, x: Leaf) -> Division:
        return self._division_of(f"{NAME}.{function}", name, x, self.shape)

    def _division_of(
        self, function: str, name: str, x: Leaf, expected: tuple[int, ...]
    ) -> Division:
        """The division of an array, if its last axes have a shape."""
        shape = jnp.shape(x)
        lead = shape[: max(len(shape) - len(expected), 0)]
        if shape != (*lead, *expected):
            part = "" if expected == self.shape else ", the part of this process"
            raise ValueError(
                f"{function} got an array of shape {shape} for `{name}`, expected "
                f"{expected} as its last axes{part} of {self.shape}"
            )
        return self._division._replace(shape=(*lead, *self.shape))


def _division(
    shape: tuple[int, ...],
    dims: Sequence[int],
    axes: Sequence[int],
    *,
    is_even: bool = False,
) -> Division:
    """The division of arrays without ghosts."""
    pairs = zip(axes, dims, strict=True)
    return Division(
        shape,
        tuple(
            DividedAxis(axis - len(shape), shape[axis], processes, is_even=is_even)
            for axis, processes in pairs
        ),
    )


def _moved(
    function: str,
    communicator: Communicator,
    leaves: list[Array],
    before: Division,
    after: Division,
) -> list[Array]:
    """The parts of arrays in another division."""
    if not leaves:
        return leaves
    distributions = (
        (Distribution(division),) * len(leaves) for division in (before, after)
    )
    operation = Redistribution(communicator, *distributions)
    moved: list[Array] = run_named(function, operation, [leaves])
    return moved


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
