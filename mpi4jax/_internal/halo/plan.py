"""Halo exchange: the ghost cells around the part of a grid that a process has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from ..arguments.checks import check_callable, integer, reject, renamed_argument
from ..arguments.types import Integer
from ..layout.packing import Tree
from ..mpi import handles
from ..nonblocking.overlap import overlap
from ..operations._arguments import root_rank
from ..operations._eager import on_own_devices
from ..operations.allgather import allgather
from ..operations.exchange import exchange
from ..operations.gather import gather
from ..operations.scatter import scatter
from ..xla import call_sites
from ..xla.jax_compat import Tracer, trace_state_clean
from . import slabs
from .slabs import Direction, Extent, Extents, Geometry

T = TypeVar("T")
R = TypeVar("R")


class Axis(NamedTuple):
    """An axis of the grid of processes, and of the arrays."""

    #: Its place in the arrays.
    place: int
    #: How many ghost cells there are on both sides.
    before: int
    behind: int
    processes: int
    is_periodic: bool
    #: The place of this process.
    coordinate: int
    #: The number of cells of all processes, if it is known.
    cells: int | None

    def part(self, coordinate: int, cells: int) -> range:
        """The cells of a process, of so many in all: the first ones have one more."""
        share, rest = divmod(cells, self.processes)
        first = coordinate * share + min(coordinate, rest)
        return range(first, first + share + (coordinate < rest))

    def own_part(self) -> range:
        assert self.cells is not None
        return self.part(self.coordinate, self.cells)


class Plan:
    """How the processes of a Cartesian communicator exchange ghost cells.

    Each process has a part of every field, with ghost cells around it: copies of cells of
    its neighbors. A plan is created once. This sends no messages.

    Arguments:
        comm (mpi4py.MPI.Cartcomm): A communicator made by ``Create_cart``. Its grid
            of processes has one axis for each axis of the arrays that is divided, and
            defines which of these are periodic.
        width: The number of ghost cells: one number, or one for each axis, or a pair
            (before, after) for each axis.
        axes (Sequence[int]): The divided axes of the arrays, in the order of the
            communicator's axes (defaults to the last ones).
        shape (Sequence[int]): The number of cells of the whole grid along these axes,
            without ghosts. :meth:`gather` needs it, and so do staggered fields, which have
            points on faces or corners. The parts differ by at most one cell, and the larger
            ones come first.
        corners (bool): Whether ghost cells at edges and corners of a part, where two axes
            meet, are exchanged too. If so, the axes are exchanged one after another, else
            all at once.

    A field may have any type, and additional axes. Its size along a divided axis is the
    number of own cells plus that of ghost cells. If the plan knows the shape, a field may
    also be staggered: it has one more point than cells, for example. The points at the ends
    of a part then also belong to the neighbors, which must have the same values there.
    """

    def __init__(
        self,
        comm: MPI.Cartcomm,
        width: int | Sequence[int] | Sequence[tuple[int, int]] = 1,
        *,
        axes: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        corners: bool = True,
    ) -> None:
        if not isinstance(comm, MPI.Comm):
            reject("halo.Plan", "comm", (MPI.Cartcomm,), comm)
        self._communicator = handles.communicator("halo.Plan", comm)
        if comm.Get_topology() != MPI.CART:
            raise ValueError(
                "halo.Plan got a communicator without a grid for argument `comm`, expected "
                "one that comm.Create_cart(dims, periods) has made"
            )
        self.comm = comm
        grid = MPI.Cartcomm(comm)
        dims, periods, coordinates = grid.Get_topo()
        number = len(dims)
        places = _integers("axes", range(-number, 0) if axes is None else axes, number)
        if len(set(places)) != number:
            raise ValueError(f"halo.Plan got {list(places)} for argument `axes`: one twice")
        cells = [None] * number if shape is None else _integers("shape", shape, number, 1)
        widths = _widths(width, number)
        self.corners = bool(corners)
        self.axes = tuple(
            Axis(place, before, behind, processes, bool(is_periodic), coordinate, count)
            for place, (before, behind), processes, is_periodic, coordinate, count in zip(
                places, widths, dims, periods, coordinates, cells, strict=True
            )
        )
        directions = [
            Direction(axis, is_up, *grid.Shift(axis, 1 if is_up else -1))
            for axis, (before, behind) in enumerate(widths)
            for is_up, count in ((False, behind), (True, before))
            if count and (dims[axis] > 1 or periods[axis])
        ]
        # The order of the axes makes no difference: each has the ghost cells of the others.
        between = [direction for direction in directions if dims[direction.axis] > 1]
        within = [direction for direction in directions if dims[direction.axis] == 1]
        self._geometry = Geometry(
            places,
            self.corners,
            _by_axis(between) if self.corners or not between else (tuple(between),),
            _by_axis(within),
        )
        self._eager = {
            function: _compiled(function) for function in (self._exchange, self._accumulate)
        }

    def __repr__(self) -> str:
        widths = [(axis.before, axis.behind) for axis in self.axes]
        dims = [axis.processes for axis in self.axes]
        return f"<halo.Plan: {dims} processes, ghost cells {widths}>"

    @overload
    def exchange(self, fields: T, *, during: None = None) -> T: ...

    @overload
    def exchange(self, fields: T, *, during: Callable[[T], R]) -> tuple[T, R]: ...

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
        if during is None:
            return self._on_leaves("exchange", self._exchange, fields)
        check_callable("halo.Plan.exchange", "during", during, "the fields")
        function = during
        return overlap(lambda: self.exchange(fields), during=lambda: function(fields))

    def accumulate(self, fields: T) -> T:
        """Add the ghost cells to the cells of the neighbors that they are copies of.

        These ghost cells are then set to zero. This is the transpose of :meth:`exchange`,
        and the other way round.

        Arguments:
            fields: An array, or a tree of arrays.

        Returns:
            The fields, with the neighbors' ghost cells added.

        """
        return self._on_leaves("accumulate", self._accumulate, fields)

    @on_own_devices
    def strip_ghosts(self, fields: T) -> T:
        """Remove the ghost cells of all fields."""

        names, leaves, structure = _flat(fields)
        found = []
        for name, leaf in zip(names, leaves, strict=True):
            extents, x = self._extents("strip_ghosts", name, leaf), jnp.asarray(leaf)
            found.append(self._own(x, extents))
        return _unflat(structure, found)

    def inner(self, fields: T) -> T:
        """Remove the ghost cells: an older name of :meth:`strip_ghosts`."""
        return self.strip_ghosts(fields)

    @renamed_argument("halo.Plan.scatter", "edge", "fill_value")
    @on_own_devices
    def scatter(self, fields: T, *, root: Integer | None = None, fill_value: Any = 0) -> T:
        """Divide whole fields into parts with ghost cells, and return that of this process.

        Arguments:
            fields: An array of the whole grid, or a tree of them, on all processes.
            root (int): The one process that has them, if not all do. On the others, only
                shapes and dtypes are used, so they may pass
                :class:`jax.ShapeDtypeStruct` instead of arrays. For derivatives and maps,
                all processes pass arrays that are differentiated or mapped over.
            fill_value: The value of ghost cells at a non-periodic edge of the grid.
                ``edge`` is its older name.

        """
        self._check_communicator("scatter")
        if root is not None:
            root = root_rank("halo.Plan.scatter", root, self._communicator)
        names, leaves, structure = _flat(fields)
        whole = [
            self._whole("scatter", name, x) for name, x in zip(names, leaves, strict=True)
        ]

        has_fields = root in (None, self._communicator.rank)
        # The values of others are not used. But JAX may differentiate tracers, or map over
        # them, here as on root.
        is_given = [has_fields or isinstance(x, Tracer) for x in leaves]

        def scattered(arrays: list[Any]) -> list[Any]:
            given = iter(arrays)
            return [
                self._scatter_one(next(given) if is_array else x, root, fill_value, cells)
                for x, cells, is_array in zip(leaves, whole, is_given, strict=True)
            ]

        arrays = list(map(jnp.asarray, itertools.compress(leaves, is_given)))
        return _unflat(structure, _once(scattered)(arrays))

    @overload
    def gather(self, fields: T, *, root: None = None) -> T: ...

    @overload
    def gather(self, fields: T, *, root: Integer) -> T | None: ...

    @on_own_devices
    def gather(self, fields: T, *, root: Integer | None = None) -> T | None:
        """Join the parts of all processes, without their ghost cells.

        Arguments:
            fields: An array, or a tree of arrays.
            root (int): The one process that gets them, if not all do.

        Returns:
            The fields of the whole grid, or None on a process that does not get them.

        """
        self._check_communicator("gather")
        self._parts("gather")
        if root is not None:
            root = root_rank("halo.Plan.gather", root, self._communicator)
        names, leaves, structure = _flat(fields)
        extents = [
            self._extents("gather", name, x) for name, x in zip(names, leaves, strict=True)
        ]

        def gathered(arrays: list[Any]) -> list[Any]:
            pairs = zip(arrays, extents, strict=True)
            return [self._gather_one(x, of_leaf, root) for x, of_leaf in pairs]

        found = _once(gathered)(list(map(jnp.asarray, leaves)))
        if root not in (None, self._communicator.rank):
            return None
        return _unflat(structure, found)

    @property
    def offset(self) -> tuple[int, ...]:
        """The index of the first own cell of this process in the whole grid."""
        return tuple(part.start for part in self._parts("offset"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of own cells of this process along each axis."""
        return tuple(map(len, self._parts("shape")))

    @property
    def start(self) -> tuple[int, ...]:
        """An older name of :attr:`offset`."""
        return self.offset

    @property
    def size(self) -> tuple[int, ...]:
        """An older name of :attr:`shape`."""
        return self.shape

    def _parts(self, name: str) -> list[range]:
        if any(axis.cells is None for axis in self.axes):
            raise ValueError(
                f"halo.Plan.{name} has to know how many cells there are in all: make the "
                "plan with shape=..."
            )
        return [axis.own_part() for axis in self.axes]

    def _check_communicator(self, function: str) -> None:
        """Refuse to communicate when the communicator is gone, on each process that tries.

        MPI may have given its handle to another one by then.
        """
        if self._communicator.is_freed:
            raise ValueError(
                f"halo.Plan.{function} got a plan whose communicator was freed, expected "
                "one with a valid communicator"
            )

    # The arrays.

    @on_own_devices
    def _on_leaves(self, function: str, body: Callable[..., Any], fields: Any) -> Any:
        self._check_communicator(function)
        tree = Tree("fields", fields)
        extents: list[tuple[Extent, ...]] = []
        tree.check(
            f"halo.Plan.{function}",
            lambda name, x: extents.append(self._extents(function, name, x)),
        )
        leaves = list(map(jnp.asarray, tree.arrays(f"halo.Plan.{function}")))
        if trace_state_clean():
            body = self._eager[body]
        return _unflat(tree.structure, body(leaves, tuple(extents)))

    def _places(self, number: int) -> list[int]:
        """Where the plan's axes are in an array of so many axes."""
        return [axis.place % number for axis in self.axes]

    def _sizes(self, function: str, name: str, x: Any) -> list[int]:
        """The size of an array along each of the plan's axes."""
        shape = jnp.shape(x)
        for axis in self.axes:
            if not -len(shape) <= axis.place < len(shape):
                raise ValueError(
                    f"halo.Plan.{function} got an array of shape {shape} for `{name}`, "
                    f"which has no axis {axis.place}"
                )
        if len(set(self._places(len(shape)))) < len(self.axes):
            places = [axis.place for axis in self.axes]
            raise ValueError(
                f"halo.Plan.{function} got an array of shape {shape} for `{name}`, "
                f"in which two of the axes {places} are one"
            )
        return [shape[axis.place] for axis in self.axes]

    def _extents(self, function: str, name: str, x: Any) -> tuple[Extent, ...]:
        found = []
        for axis, size in zip(self.axes, self._sizes(function, name, x), strict=True):
            shared = 0
            if axis.cells is not None:
                shared = size - len(axis.own_part()) - axis.before - axis.behind
            if shared < 0:
                count = len(axis.own_part())
                raise ValueError(
                    f"halo.Plan.{function} got an array of shape {jnp.shape(x)} for "
                    f"`{name}`, expected at least {count + axis.before + axis.behind} "
                    f"points along axis {axis.place}: {count} cells of this process, with "
                    f"{axis.before} and {axis.behind} ghost cells"
                )
            own = size - axis.before - axis.behind
            has_neighbors = axis.processes > 1 or axis.is_periodic
            if own < (max(axis.before, axis.behind) + shared) * has_neighbors:
                raise ValueError(
                    f"halo.Plan.{function} got an array of shape {jnp.shape(x)} for "
                    f"`{name}`, with {max(own, 0)} points of its own along axis "
                    f"{axis.place}: too few for the ghost cells of its neighbors"
                )
            found.append(Extent(size, axis.before, axis.behind, shared))
        return tuple(found)

    def _own(self, x: Any, extents: Sequence[Extent]) -> Any:
        """The own points of a field."""
        own = [extent.own for extent in extents]
        return x[self._geometry.index_of(x.ndim, own)]

    # Messages.

    def _exchange(self, leaves: list[Any], extents: Extents) -> list[Any]:
        return self._with_others(slabs.exchange, leaves, extents)

    def _accumulate(self, leaves: list[Any], extents: Extents) -> list[Any]:
        return self._with_others(slabs.accumulate, leaves, extents)

    def _with_others(
        self, function: Callable[..., list[Any]], leaves: list[Any], extents: Extents
    ) -> list[Any]:
        geometry = self._geometry
        if not leaves or not (geometry.groups or geometry.within):
            return leaves
        return function(geometry, leaves, extents, self._travel)

    def _travel(
        self,
        sent: Sequence[list[Any]],
        room: Sequence[list[Any]],
        directions: Sequence[Direction],
    ) -> Sequence[list[Any]]:
        """What comes from each direction for what is sent in it.

        The calls of all processes have all directions, also where these have no end. So
        derivatives and maps, which look at arrays, find the same call everywhere.
        """
        return exchange(
            sent,
            room,
            source=[direction.source for direction in directions],
            dest=[direction.dest for direction in directions],
            sendtag=[direction.tag for direction in directions],
            recvtag=[direction.tag for direction in directions],
            comm=self.comm,
        )

    # Whole fields.

    def _whole(self, function: str, name: str, x: Any) -> list[tuple[int, int]]:
        """How many cells a whole field has along each axis, and how many points more."""
        found = []
        for axis, size in zip(self.axes, self._sizes(function, name, x), strict=True):
            cells = size if axis.cells is None else axis.cells
            if size < cells:
                raise ValueError(
                    f"halo.Plan.{function} got an array of shape {jnp.shape(x)} for "
                    f"`{name}`, expected at least {cells} points along axis {axis.place}"
                )
            found.append((cells, size - cells))
        return found

    def _scatter_one(
        self,
        x: Any,
        root: int | None,
        fill_value: Any,
        whole: Sequence[tuple[int, int]],
    ) -> Any:
        shape = list(x.shape)
        places = self._places(x.ndim)

        def sources(axis: Axis, cells: int, more: int, coordinate: int) -> Any:
            """Which point of the whole field each one of a part is, or the first behind."""
            part = axis.part(coordinate, cells)
            points = np.arange(part.start - axis.before, part.stop + more + axis.behind)
            if axis.is_periodic:
                return points % cells
            return np.where((points >= 0) & (points < cells + more), points, cells + more)

        def taken(x: Any, points: Any, place: int) -> Any:
            return jnp.take(x, points, place, mode="fill", fill_value=fill_value)

        described = list(zip(self.axes, whole, places, strict=True))
        if root is None:
            for axis, (cells, more), place in described:
                x = taken(x, sources(axis, cells, more, axis.coordinate), place)
            return x
        # Parts of one size, the largest: those that are smaller have a rest.
        largest = [len(sources(axis, *found, 0)) for axis, found, _ in described]
        for place, size in zip(places, largest, strict=True):
            shape[place] = size
        if root == self._communicator.rank:
            for (axis, (cells, more), place), size in zip(described, largest, strict=True):
                points = [
                    np.pad(found, (0, size - len(found)), constant_values=cells + more)
                    for found in (
                        sources(axis, cells, more, n) for n in range(axis.processes)
                    )
                ]
                x = taken(x, np.concatenate(points), place)
            x = self._split(x, places)
        else:
            x = _zeros_of(x, shape)
        x = scatter(x, root, comm=self.comm)
        for axis, (cells, more), place in described:
            own = len(sources(axis, cells, more, axis.coordinate))
            x = jax.lax.slice_in_dim(x, 0, own, axis=place)
        return x

    def _gather_one(self, x: Any, extents: Sequence[Extent], root: int | None) -> Any:
        places = self._places(x.ndim)
        x = self._own(x, extents)
        described = list(zip(self.axes, extents, places, strict=True))
        padding = [(0, 0)] * x.ndim
        for axis, extent, place in described:
            assert axis.cells is not None
            largest = len(axis.part(0, axis.cells)) + extent.shared
            padding[place] = (0, largest - x.shape[place])
        x = jnp.pad(x, padding)
        if root is None:
            x = allgather(x, comm=self.comm)
        else:
            x = gather(x, root, comm=self.comm)
            if root != self._communicator.rank:
                return None
        x = self._joined(x, places)
        for axis, extent, place in described:
            assert axis.cells is not None
            parts = [axis.part(n, axis.cells) for n in range(axis.processes)]
            largest = len(parts[0]) + extent.shared
            points = [n * largest + np.arange(len(part)) for n, part in enumerate(parts)]
            # Points that two processes have are those of the one behind.
            last = (len(parts) - 1) * largest + len(parts[-1])
            points.append(last + np.arange(extent.shared))
            x = jnp.take(x, np.concatenate(points), place)
        return x

    def _split(self, x: Any, places: Sequence[int]) -> Any:
        """A stack of the parts, by rank, of an array that has them side by side."""
        shape: list[int] = []
        of_processes = []
        for place, size in enumerate(x.shape):
            if place in places:
                processes = self.axes[places.index(place)].processes
                of_processes.append((places.index(place), len(shape)))
                shape += [processes, size // processes]
            else:
                shape.append(size)
        front = [at for _, at in sorted(of_processes)]
        x = jnp.moveaxis(x.reshape(shape), front, range(len(front)))
        return jax.lax.collapse(x, 0, len(front))

    def _joined(self, x: Any, places: Sequence[int]) -> Any:
        """The array that has the parts of a stack side by side."""
        number = len(self.axes)
        x = x.reshape(*(axis.processes for axis in self.axes), *x.shape[1:])
        # Each axis of processes goes in front of that of their cells.
        order: list[int] = []
        shape: list[int] = []
        for place, size in enumerate(x.shape[number:]):
            if place in places:
                axis = places.index(place)
                order.append(axis)
                size *= self.axes[axis].processes
            order.append(number + place)
            shape.append(size)
        return x.transpose(order).reshape(shape)


def _flat(fields: Any) -> tuple[list[str], list[Any], Any]:
    """What the user knows the leaves of a tree by, the leaves, and the structure."""
    found, structure = jax.tree_util.tree_flatten_with_path(fields)
    names = [f"fields{jax.tree_util.keystr(path)}" for path, _ in found]
    return names, [leaf for _, leaf in found], structure


def _unflat(structure: Any, leaves: Sequence[Any]) -> Any:
    return jax.tree_util.tree_unflatten(structure, leaves)


def _zeros_of(x: Any, shape: Sequence[int]) -> Any:
    """Zeros of another shape, which depend on an array for derivatives and maps."""
    if not isinstance(x, Tracer):
        return jnp.zeros(shape, jax.dtypes.canonicalize_dtype(x.dtype))
    return jnp.broadcast_to(jnp.sum(jnp.ravel(x)[:0]).astype(x.dtype), shape)


def _once(function: Callable[..., T]) -> Callable[..., T]:
    """A function as one program, where it would be many."""
    if not trace_state_clean():
        return function
    call_sites.mark_eager(function)
    return jax.jit(function)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(leaves: list[Any], extents: Any) -> Any:
        return function(leaves, extents)

    call_sites.mark_eager(run)
    run.__name__ = f"halo{function.__name__}"
    return jax.jit(run, static_argnums=1)


def _by_axis(directions: Sequence[Direction]) -> tuple[tuple[Direction, ...], ...]:
    groups = itertools.groupby(directions, lambda direction: direction.axis)
    return tuple(tuple(group) for _, group in groups)


def _integers(
    argument: str, values: Any, number: int, least: int | None = None
) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        reject("halo.Plan", argument, (Sequence,), values)
    found = tuple(integer("halo.Plan", argument, value) for value in values)
    if len(found) != number or (least is not None and min(found, default=least) < least):
        positive = "" if least is None else f", {least} or more,"
        raise ValueError(
            f"halo.Plan got {list(found)} for argument `{argument}`, expected a "
            f"number{positive} for each of the {number} axes of the communicator"
        )
    return found


def _widths(width: Any, number: int) -> list[tuple[int, int]]:
    """How many ghost cells there are before and behind, for each axis."""
    if not isinstance(width, (Sequence, np.ndarray)):
        width = [integer("halo.Plan", "width", width)] * number
    pairs: list[Any] = []
    for one in width:
        if not isinstance(one, (Sequence, np.ndarray)):
            one = (one, one)
        pairs.append(tuple(integer("halo.Plan", "width", count) for count in one))
    if len(pairs) != number or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise ValueError(
            f"halo.Plan got {width!r} for argument `width`, expected a number of ghost "
            "cells, not negative, or a number or a pair of them for each of the "
            f"{number} axes of the communicator"
        )
    return pairs
