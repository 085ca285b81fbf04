"""Layouts: how a whole array is divided among the processes of a grid."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from ..arguments.checks import array_of_others, integers, reject
from ..arguments.types import Array, Integer, PyTree, Unchecked
from ..halo.grid import Grid
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.meshes import world_rank
from ..mpi.plans import PlanBase
from ..operations._arguments import known_root
from ..operations._eager import on_own_devices, run_named
from ..xla.dependence import depend
from ..xla.jax_compat import Tracer
from .redistribution import Division, GatherCall, Redistribution

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

NAME = "pencil.Layout"


class Layout(PlanBase):
    """How whole arrays are divided among the processes of a Cartesian communicator.

    Each process has a part of every array. A layout is created once. This sends no
    messages.

    Arguments:
        comm (mpi4py.MPI.Cartcomm): A communicator made by ``Create_cart``.
        shape (Sequence[int]): The shape of the whole arrays.
        axes (Sequence[int]): For each axis of the communicator's grid, the axis of the
            arrays that is divided along it. The parts differ by at most one row, and the
            larger ones come first, as in :class:`mpi4jax.halo.Plan`. If there are more
            processes than rows, some have none.

    Fields may have any type, and additional axes, before those of the layout.
    """

    _public_name = NAME
    #: The communicator of the grid of processes.
    comm: MPI.Intracomm
    #: The shape of the whole arrays.
    shape: tuple[int, ...]
    #: The number of processes along each axis of the grid.
    dims: tuple[int, ...]
    #: The axis that is divided along each axis of the grid.
    axes: tuple[int, ...]

    def __init__(
        self, comm: MPI.Cartcomm, shape: Sequence[int], axes: Sequence[int]
    ) -> None:
        if not isinstance(comm, MPI.Comm):
            reject(NAME, "comm", "a communicator of comm.Create_cart(...)", comm)
        handles.communicator(NAME, comm)  # raises if one can't communicate on it
        self._divide(Grid.of_communicator(NAME, comm), shape, axes)

    def _divide(self, grid: Grid, shape: Sequence[int], axes: Sequence[int]) -> None:
        self._communicator = handles.communicator(NAME, grid.comm)
        self._grid = grid
        self.comm, self.dims = grid.comm, grid.dims
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
                "of the communicator"
            )
        self._division = Division(self.shape, self.dims, self.axes)

    def _key(self) -> tuple[object, ...]:
        """The values by which layouts compare."""
        return type(self), self._communicator, self._grid.names, self._division

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"<pencil.{type(self).__name__}: {self.shape}, axes {self.axes} over "
            f"{self.dims} processes>"
        )

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
        layout._divide(self._grid, shape, axes)
        return layout

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part of this process, as an index of the whole array."""
        box = self._division.box(self._communicator.rank)
        return tuple(slice(indices.start, indices.stop) for indices in box)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part of this process."""
        return self._division.local_shape(self._communicator.rank)

    def part_along(self, axis: int, values: np.ndarray) -> np.ndarray | Array:
        """What this process has of values along an axis, such as coordinates."""
        return values[self.slices[axis]]

    def sharding(self, mesh: jax.sharding.Mesh) -> NamedSharding:
        """How JAX shards an array of which each process has its part of the layout.

        With it, :func:`jax.make_array_from_process_local_data` makes a sharded array of the
        parts of all processes. ``array.addressable_data(0)`` is that of this one.

        Arguments:
            mesh (jax.sharding.Mesh): A mesh with the processes of the layout as its
                devices, in the same grid. They have to divide the sizes evenly.

        """
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

    def _spec(self, names: Sequence[Hashable]) -> PartitionSpec:
        """How arrays are sharded over these axes of a mesh."""
        by_axis = dict(zip(self.axes, names, strict=True))
        return PartitionSpec(*(by_axis.get(axis) for axis in range(len(self.shape))))

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
        if type(to) is not type(self):
            reject(f"{NAME}.redistribute", "to", f"a pencil.{type(self).__name__}", to)
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
        return self._moved(function, leaves, self._division, to._division)

    @on_own_devices
    def scatter(self, fields: T, *, root: Integer | None = None) -> T:
        """The parts of this process of whole fields.

        Arguments:
            fields: An array, or a tree of arrays, on all processes.
            root (int): The one process that has them, if not all do. On the others, only
                shapes and dtypes are used, so they may pass
                :class:`jax.ShapeDtypeStruct` instead of arrays. For derivatives and maps,
                all processes pass arrays that are differentiated or mapped over.

        """
        function = f"{NAME}.scatter"
        if root is None:
            leaves, structure = self._leaves(function, fields, self.shape)
            return structure.unflatten(x[(..., *self.slices)] for x in leaves)
        self._communicator_of(function)
        root = known_root(function, root, self._communicator)
        if root == self._communicator.rank:
            leaves, structure = self._leaves(function, fields, self.shape)
        else:
            tree = Tree("fields", fields)
            others = (array_of_others(function, *leaf) for leaf in tree.named_leaves())
            leaves, structure = list(map(self._nothing_of, others)), tree.structure
        moved = self._moved(function, leaves, self._whole_on(root), self._division)
        return structure.unflatten(moved)

    def _nothing_of(self, x: Unchecked) -> Array:
        """What this process has of a field that another one has."""
        lead = jnp.shape(x)[: jnp.ndim(x) - len(self.shape)]
        shape = *lead, *(0 for _ in self.shape)
        nothing = jnp.zeros(shape, jax.dtypes.canonicalize_dtype(jnp.result_type(x)))
        return depend(nothing, x) if isinstance(x, Tracer) else nothing

    @on_own_devices
    def gather(self, fields: T, *, root: Integer | None = None) -> T | None:
        """Join the parts of all processes.

        Arguments:
            fields: An array, or a tree of arrays: the parts of this process.
            root (int): The one process that gets them, if not all do.

        Returns:
            The whole fields, or None on a process that does not get them.

        """
        function, communicator = f"{NAME}.gather", self._communicator
        leaves, structure = self._leaves_of(function, fields)
        root = None if root is None else known_root(function, root, communicator)
        call = GatherCall(communicator, self._division, root)
        whole = run_named(function, call, [leaves]) if leaves else []
        if root is not None and root != communicator.rank:
            return None
        return structure.unflatten(whole)

    def _whole_on(self, root: int) -> Division:
        return self._division._replace(root=root)

    def _moved(
        self, function: str, leaves: list[Array], source: Division, result: Division
    ) -> list[Array]:
        if not leaves:
            return leaves
        operation = Redistribution(self._communicator, source, result)
        moved: list[Array] = run_named(function, operation, [leaves])
        return moved

    def _leaves_of(self, function: str, fields: PyTree) -> tuple[list[Array], PyTreeDef]:
        """The fields, which have to be parts of this process."""
        return self._leaves(function, fields, self.local_shape)

    def _leaves(
        self, function: str, fields: PyTree, shape: tuple[int, ...]
    ) -> tuple[list[Array], PyTreeDef]:
        """The fields, whose last axes have to have a shape."""
        self._communicator_of(function)
        tree = Tree("fields", fields)
        leaves = []
        for name, x in tree.jax_arrays(function):
            if x.ndim < len(shape) or x.shape[x.ndim - len(shape) :] != shape:
                part = "" if shape == self.shape else ", the part of this process"
                raise ValueError(
                    f"{function} got an array of shape {x.shape} for `{name}`, expected "
                    f"{shape} as its last axes{part} of {self.shape}"
                )
            leaves.append(x)
        return leaves, tree.structure
