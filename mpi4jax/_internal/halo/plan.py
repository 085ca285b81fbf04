"""The plan of a halo exchange: it fills the ghost cells around the part of a process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.checks import integer, integers
from ..arguments.types import Array, Integer, Op, PyTree, Scalar, Unchecked
from ..ghosts import Fields, GhostPlan, exchange_ghosts
from ..grids.division import DividedAxis, Division
from ..grids.grid import Grid
from ..grids.plan import GridPlan
from ..layout.packing import Tree
from ..mpi import handles
from ..nonblocking.requests import Request
from ..operations._eager import on_own_devices
from ..whole import Leaf
from .slabs import CellGhosts, Direction, Extent, Geometry

T = TypeVar("T")
R = TypeVar("R")

#: Largest number of points that neighboring parts share: n cells have n + 1 faces.
MAX_SHARED = 1


class Plan(GhostPlan, GridPlan):
    """How the processes of a Cartesian communicator exchange ghost cells.

    Each process has a part of every field, with ghost cells around it: copies of cells of
    its neighbors. A plan is created once. This sends no messages.

    Arguments:
        comm (mpi4py.MPI.Cartcomm or jax.sharding.Mesh): A communicator made by
            ``Create_cart``. Its grid of processes has one axis for each axis of the arrays
            that is divided, and defines which of these are periodic. Or a mesh, for fields
            in a :func:`jax.shard_map` over it.
        width: The number of ghost cells: one number, or one for each axis, or a pair
            (lower, upper) for each axis.
        axes (Sequence[int]): The divided axes of the arrays, in the order of the
            communicator's axes (defaults to the last ones). Negative numbers count from the
            last axis of an array, as for all plans; others count from its first one.
        shape (Sequence[int]): The number of cells of the whole grid along these axes,
            without ghosts. :meth:`gather` needs it, and so do staggered fields, which have
            points on faces or corners. The parts differ by at most one cell, and the larger
            ones come first.
        corners (bool): Whether ghost cells at edges and corners of a part, where two axes
            meet, are exchanged too. If so, the axes are exchanged one after another, else
            all at once.
        names (str or Sequence[str]): Of a mesh, the axes of the grid (defaults to all).
        periods (Sequence[bool]): Of a mesh, which of these axes are periodic (defaults to
            none).

    A field may have any type, and additional axes. Its size along a divided axis is the
    number of own cells plus that of ghost cells. If the plan knows the shape, a field may
    also be staggered: it has one more point than cells. The points at the ends of a part
    then also belong to the neighbors, which must have the same values there.
    """

    _public_name = "halo.Plan"

    def __init__(
        self,
        comm: MPI.Cartcomm | jax.sharding.Mesh,
        width: int | Sequence[int] | Sequence[tuple[int, int]] = 1,
        *,
        axes: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        corners: bool = True,
        names: str | Sequence[Hashable] | None = None,
        periods: Sequence[bool] | None = None,
    ) -> None:
        self._grid = grid = Grid.of("halo.Plan", comm, names, periods)
        self._communicator = handles.communicator("halo.Plan", grid.comm)
        ndim = len(grid.dims)
        positions = _integers("axes", range(-ndim, 0) if axes is None else axes, ndim)
        if len(set(positions)) != ndim:
            raise ValueError(
                f"halo.Plan got {list(positions)} for argument `axes`: one twice"
            )
        cells = (0,) * ndim if shape is None else _integers("shape", shape, ndim, 1)
        self._has_shape = shape is not None
        widths = _widths(width, ndim)
        self.corners = bool(corners)
        #: The divided axes of the arrays.
        self.axes = positions
        #: The numbers of ghost cells on the lower and the upper side of each axis.
        self.widths = tuple(widths)
        self._axes = tuple(
            DividedAxis(
                position,
                count,
                processes,
                lower,
                upper,
                is_periodic,
                is_even=self._is_on_mesh,
            )
            for position, count, processes, (lower, upper), is_periodic in zip(
                positions, cells, grid.dims, widths, grid.periods, strict=True
            )
        )
        self._check_division()
        # Upward go the ghost cells on the lower side of the next process.
        ways = [
            (axis, is_upward)
            for axis, (lower, upper) in enumerate(widths)
            for is_upward, count in ((False, upper), (True, lower))
            if count and (grid.dims[axis] > 1 or grid.periods[axis])
        ]
        #: The shift of each direction.
        self._shifts = [(axis, 1 if is_upward else -1) for axis, is_upward in ways]
        directions = [
            Direction(
                *way, *ranks, may_end=not (grid.names is None or grid.periods[way[0]])
            )
            for way, ranks in zip(ways, grid.parameters(self._shifts), strict=True)
        ]
        # The order of the axes makes no difference: each has the ghost cells of the others.
        between = [each for each in directions if grid.dims[each.axis] > 1]
        within = [each for each in directions if grid.dims[each.axis] == 1]
        self._geometry = Geometry(
            positions,
            self.corners,
            _by_axis(between) if self.corners or not between else (tuple(between),),
            _by_axis(within),
        )

    @override
    def __repr__(self) -> str:
        dims, widths = list(self._grid.dims), list(self.widths)
        return f"<halo.Plan: {dims} processes, ghost cells {widths}>"

    @overload
    def exchange(self, fields: T, *, during: None = None) -> T: ...

    @overload
    def exchange(self, fields: T, *, during: Callable[[T], R]) -> tuple[T, R]: ...

    @on_own_devices
    def exchange(
        self, fields: T, *, during: Callable[[T], R] | None = None
    ) -> T | tuple[T, R]:
        """Fill the ghost cells with the neighbors' values.

        All fields together are one message for each neighbor. Ghost cells at a non-periodic
        edge of the grid are not changed.

        Arguments:
            fields: An array, or a tree of arrays.
            during: A function of the fields, with their old ghost cells, to compute while
                messages are in flight: all messages if the plan has no corners, else those
                along the first axis that is divided.

        Returns:
            The fields, with their ghost cells filled; with ``during``, a tuple of these and
            the result of ``during``.

        """
        return self._exchange(fields, during)

    @on_own_devices
    def start(self, fields: T) -> Request[T]:
        """Start an :meth:`exchange`, which :meth:`finish` completes.

        The messages of a plan with corners that are in flight are those along the first
        axis that is divided.

        Arguments:
            fields: An array, or a tree of arrays.

        Returns:
            A request, to be passed to :meth:`finish` or :func:`mpi4jax.wait` once.

        """
        return self._start(fields)

    @on_own_devices
    def accumulate(self, fields: T, op: Op = MPI.SUM) -> T:
        """Add the ghost cells to the cells of the neighbors that they are copies of.

        These ghost cells are then set to zero. This is the transpose of :meth:`exchange`,
        as that is of this.

        Arguments:
            fields: An array, or a tree of arrays.
            op (mpi4py.MPI.Op): What is done instead of a sum: :obj:`mpi4py.MPI.MAX` or
                ``MIN``.

        Returns:
            The fields, with the neighbors' ghost cells added.

        """
        return self._accumulate(fields, op)

    @on_own_devices
    def with_ghosts(self, fields: T, *, fill_value: Scalar = 0) -> T:
        """Put ghost cells around the own cells of all fields, and fill them.

        Arguments:
            fields: An array, or a tree of arrays, without ghost cells.
            fill_value: The value of ghost cells at a non-periodic edge of the grid.

        Returns:
            The fields with their ghost cells.

        """
        tree = Tree("fields", fields)
        leaves = tree.jax_arrays("halo.Plan.with_ghosts")
        padded = tree.with_leaves(self._pad(*leaf, fill_value) for leaf in leaves)
        return self._run("with_ghosts", exchange_ghosts, padded)

    @on_own_devices
    def without_ghosts(self, fields: T) -> T:
        """Remove the ghost cells of all fields."""
        tree = Tree("fields", fields)
        return tree.with_leaves(
            self._strip(x, self._extents("without_ghosts", name, x))
            for name, x in tree.jax_arrays("halo.Plan.without_ghosts")
        )

    @overload
    def scatter(
        self, fields: Callable[[], T], *, root: None = None, fill_value: Scalar = 0
    ) -> T: ...

    @overload
    def scatter(
        self, fields: T, *, root: Integer | None = None, fill_value: Scalar = 0
    ) -> T: ...

    @on_own_devices
    def scatter(
        self,
        fields: PyTree,
        *,
        root: Integer | None = None,
        fill_value: Scalar = 0,
    ) -> PyTree:
        """Divide whole fields into parts with ghost cells, and return that of this process.

        Arguments:
            fields: An array of the whole grid, or a tree of them, on all processes. Or a
                function without arguments that computes these, of which each process
                computes its part only.
            root (int): The one process that has them, if not all do. On the others, only
                shapes and dtypes are used, so they may pass
                :class:`jax.ShapeDtypeStruct` instead of arrays. For derivatives and maps,
                all processes pass arrays that are differentiated or mapped over.
            fill_value: The value of ghost cells at a non-periodic edge of the grid.

        """
        return self._scatter(fields, root, fill_value)

    @property
    def offset(self) -> tuple[int | Array, ...]:
        """The index of the first own cell of this process in the whole grid."""
        self._check_shape("offset")
        own = self._grid.program_coordinates("halo.Plan.offset")
        pairs = zip(self._axes, own or self._coordinates, strict=True)
        return tuple(axis.start(coordinate) for axis, coordinate in pairs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells of the whole grid along each divided axis."""
        self._check_shape("shape")
        return tuple(axis.cells for axis in self._axes)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The number of own cells of this process along each divided axis."""
        self._check_shape("local_shape")
        pairs = zip(self._axes, self._coordinates, strict=True)
        return tuple(axis.local_cells(coordinate) for axis, coordinate in pairs)

    def shares_points(self, field: Array) -> bool:
        """Whether a field is staggered: neighbors have points in common."""
        extents = self._extents("without_ghosts", "fields", field)
        return any(extent.shared for extent in extents)

    @property
    def _coordinates(self) -> tuple[int, ...]:
        """The coordinates of this process, or on a mesh of the first one."""
        return self._grid.coordinates or (0,) * len(self._axes)

    def _check_shape(self, name: str) -> None:
        if not self._has_shape:
            raise ValueError(
                f"halo.Plan.{name} has to know how many cells there are in all: make the "
                "plan with shape=..."
            )

    def _check_division(self) -> None:
        """Refuse parts of different sizes on a mesh, where all run the same program."""
        for axis, name in zip(self._axes, self._grid.names or (), strict=False):
            if axis.cells % axis.processes:
                raise ValueError(
                    f"halo.Plan got {axis.cells} cells for argument `shape` along "
                    f"{name!r}, expected a multiple of the {axis.processes} processes "
                    "along this axis of the mesh"
                )

    # The arrays.

    @override
    def _fields(self, name: str, fields: PyTree) -> Fields:
        function = f"halo.Plan.{name}"
        communicator = self._communicator_of(function)
        tree = Tree("fields", fields)
        arrays, extents = [], []
        for path, x in tree.jax_arrays(function):
            arrays.append(x)
            extents.append(self._extents(name, path, x))
        ghosts = CellGhosts(communicator, self._geometry, tuple(extents))
        ranks: tuple[Array, ...] = ()
        if arrays and not ghosts.is_empty:
            self._grid.check_program(function)
            if self._geometry.groups:
                ranks = self._grid.ranks(self._shifts)
        return Fields(arrays, tree.structure, ghosts, ranks=ranks)

    def _sizes(self, function: str, name: str, x: Leaf) -> list[int]:
        """The size of an array along each of the plan's axes."""
        shape = jnp.shape(x)
        for position in self.axes:
            if not -len(shape) <= position < len(shape):
                raise ValueError(
                    f"halo.Plan.{function} got an array of shape {shape} for `{name}`, "
                    f"which has no axis {position}"
                )
        if len({position % len(shape) for position in self.axes}) < len(self.axes):
            raise ValueError(
                f"halo.Plan.{function} got an array of shape {shape} for `{name}`, "
                f"in which two of the axes {list(self.axes)} are one"
            )
        return [shape[position] for position in self.axes]

    def _extents(self, function: str, name: str, x: Leaf) -> tuple[Extent, ...]:
        extents = []
        sizes = self._sizes(function, name, x)
        for axis, coordinate, size in zip(
            self._axes, self._coordinates, sizes, strict=True
        ):
            shared = 0
            if self._has_shape:
                cells, ghosts = axis.local_cells(coordinate), axis.lower + axis.upper
                shared = size - cells - ghosts
                if not 0 <= shared <= MAX_SHARED:
                    raise ValueError(
                        f"{_expected(function, name, x, cells + ghosts, axis)}: {cells} "
                        f"cells of this process, with {axis.lower} and {axis.upper} ghost "
                        "cells"
                    )
            own = size - axis.lower - axis.upper
            has_neighbors = axis.processes > 1 or axis.is_periodic
            if own < (max(axis.lower, axis.upper) + shared) * has_neighbors:
                raise ValueError(
                    f"halo.Plan.{function} got an array of shape {jnp.shape(x)} for "
                    f"`{name}`, with {max(own, 0)} points of its own along axis "
                    f"{axis.position}: too few for the ghost cells of its neighbors"
                )
            extents.append(Extent(size, axis.lower, axis.upper, shared))
        return tuple(extents)

    def _pad(self, name: str, own: Array, fill_value: Scalar) -> Array:
        """A field with ghost cells around its own points."""
        self._sizes("with_ghosts", name, own)  # it has these axes
        padding = [(0, 0)] * own.ndim
        for axis in self._axes:
            padding[axis.position] = (axis.lower, axis.upper)
        return jnp.pad(own, padding, constant_values=fill_value)

    def _strip(self, x: Array, extents: Sequence[Extent]) -> Array:
        """The own points of a field."""
        for position, extent in zip(self.axes, extents, strict=True):
            own = extent.own
            x = jax.lax.slice_in_dim(x, own.start, own.stop, axis=position)
        return x

    # Whole fields.

    @override
    def _whole_division(self, function: str, name: str, x: Leaf) -> Division:
        extras = []
        for axis, size in zip(self._axes, self._sizes(function, name, x), strict=True):
            extras.append(size - axis.cells if self._has_shape else 0)
            if not 0 <= extras[-1] <= MAX_SHARED:
                raise ValueError(_expected(function, name, x, axis.cells, axis))
        return self._division(jnp.shape(x), extras)

    @override
    def _part_division(self, function: str, name: str, x: Array) -> Division:
        self._check_shape(function)
        extents, shape = self._extents(function, name, x), [*x.shape]
        for axis, extent in zip(self._axes, extents, strict=True):
            shape[axis.position] = axis.cells + extent.shared
        return self._division(shape, [extent.shared for extent in extents])

    def _division(self, shape: Sequence[int], extras: Sequence[int]) -> Division:
        """The division of whole fields, with extra points where they are staggered."""
        axes = (
            axis._replace(
                position=axis.position % len(shape) - len(shape),
                cells=shape[axis.position] - extra,
                extra=extra,
            )
            for axis, extra in zip(self._axes, extras, strict=True)
        )
        return Division(tuple(shape), tuple(axes))


def _expected(function: str, name: str, x: Leaf, points: int, axis: DividedAxis) -> str:
    """Text of the error for a field that fits neither the cells nor their faces."""
    return (
        f"halo.Plan.{function} got an array of shape {jnp.shape(x)} for `{name}`, expected "
        f"{points} points along axis {axis.position}, or {points + MAX_SHARED} of a "
        "staggered field"
    )


def _by_axis(directions: Sequence[Direction]) -> tuple[tuple[Direction, ...], ...]:
    groups = itertools.groupby(directions, lambda direction: direction.axis)
    return tuple(tuple(group) for _, group in groups)


def _integers(
    argument: str, values: object, count: int, minimum: int | None = None
) -> tuple[int, ...]:
    numbers = integers("halo.Plan", argument, values)
    is_too_small = minimum is not None and min(numbers, default=minimum) < minimum
    if len(numbers) != count or is_too_small:
        positive = "" if minimum is None else f", {minimum} or more,"
        raise ValueError(
            f"halo.Plan got {list(numbers)} for argument `{argument}`, expected a "
            f"number{positive} for each of the {count} axes of the communicator"
        )
    return numbers


def _widths(width: Unchecked, ndim: int) -> list[tuple[int, ...]]:
    """The numbers of ghost cells on the lower and the upper side, for each axis."""
    if not isinstance(width, (Sequence, np.ndarray)):
        width = [integer("halo.Plan", "width", width)] * ndim
    pairs = []
    for of_axis in width:
        if not isinstance(of_axis, (Sequence, np.ndarray)):
            of_axis = (of_axis, of_axis)
        pairs.append(tuple(integer("halo.Plan", "width", count) for count in of_axis))
    if len(pairs) != ndim or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ValueError(
            f"halo.Plan got {width!r} for argument `width`, expected a number of ghost "
            "cells, not negative, or a number or a pair of them for each of the "
            f"{ndim} axes of the communicator"
        )
    return pairs
