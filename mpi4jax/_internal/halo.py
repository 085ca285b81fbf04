"""Halo exchange: the ghost cells around the part of a grid that a process has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from . import lines
from .annotations import Integer
from .copies import Copy, View, put, taken
from .dtypes import carried
from .effects import ordered_effect
from .jax_compat import (
    Primitive,
    ShapedArray,
    ad,
    batching,
    def_eager,
    lower_at_its_line,
    register_lowering,
    trace_state_clean,
)
from .operations._arguments import PROC_NULL
from .operations.allgather import allgather
from .operations.exchange import exchange
from .operations.gather import gather
from .operations.scatter import scatter
from .overlap import is_split, overlap
from .packing import Tree
from .validation import integer, reject

T = TypeVar("T")
R = TypeVar("R")

#: The tags of a plan's messages begin here: where users have none, and all MPIs have some
#: (MPI-4.1 §9.1.2).
FIRST_TAG = 32767 - 64


class Direction(NamedTuple):
    """One way in which cells travel along an axis: to the process before, or behind."""

    axis: int
    is_up: bool
    source: int
    dest: int

    @property
    def tag(self) -> int:
        return FIRST_TAG + 2 * self.axis + self.is_up


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


class Extent(NamedTuple):
    """Where the cells of an array are along an axis."""

    size: int
    #: How many ghost cells there are on both sides.
    before: int
    behind: int
    #: How many of its own points a process has in common with each of its neighbors, as
    #: those on the faces between two cells.
    shared: int

    @property
    def own(self) -> slice:
        return slice(self.before, self.size - self.behind)


def _ghosts(extent: Extent, direction: Direction) -> slice:
    """The ghost cells that what comes in a direction fills."""
    if direction.is_up:
        return slice(0, extent.before)
    return slice(extent.size - extent.behind, extent.size)


def _owned(extent: Extent, direction: Direction) -> slice:
    """The own cells that are the ghosts of the next process in a direction."""
    if direction.is_up:
        end = extent.size - extent.behind - extent.shared
        return slice(end - extent.before, end)
    start = extent.before + extent.shared
    return slice(start, start + extent.behind)


def _filled(extent: Extent, direction: Direction) -> slice:
    """The ghost cells, or none of them where nothing comes."""
    return _where_something_comes(_ghosts(extent, direction), direction)


def _added_to(extent: Extent, direction: Direction) -> slice:
    """The own cells, or none of them where nothing comes."""
    return _where_something_comes(_owned(extent, direction), direction)


def _where_something_comes(part: slice, direction: Direction) -> slice:
    # JAX sees that the result depends on the call nevertheless, and XLA has nothing to do.
    return slice(part.start, part.start) if direction.source == PROC_NULL else part


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
        self._directions = [
            Direction(axis, is_up, *grid.Shift(axis, 1 if is_up else -1))
            for axis, (before, behind) in enumerate(widths)
            for is_up, count in ((False, behind), (True, before))
            if count and (dims[axis] > 1 or periods[axis])
        ]
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
                along the first axis.

        Returns:
            The fields, with their ghost cells filled; with ``during``, a tuple of these and
            the result of ``during``.

        """
        if during is None:
            return self._on_leaves("exchange", self._exchange, fields)
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

    def inner(self, fields: T) -> T:
        """Remove the ghost cells of all fields."""

        names, leaves, structure = _flat(fields)
        found = []
        for name, leaf in zip(names, leaves, strict=True):
            extents, x = self._extents("inner", name, leaf), jnp.asarray(leaf)
            found.append(x[self._index(x, [extent.own for extent in extents])])
        return _unflat(structure, found)

    def scatter(self, fields: T, *, root: Integer | None = None, edge: Any = 0) -> T:
        """Divide whole fields into parts with ghost cells, and return that of this process.

        Arguments:
            fields: An array of the whole grid, or a tree of them, on all processes.
            root (int): The one process that has them, if not all do. On the others, only
                shapes and dtypes are used, so they may pass
                :class:`jax.ShapeDtypeStruct` instead of arrays.
            edge: The value of ghost cells at a non-periodic edge of the grid.

        """
        if root is not None:
            root = self._root("scatter", root)
        names, leaves, structure = _flat(fields)
        whole = [
            self._whole("scatter", name, x) for name, x in zip(names, leaves, strict=True)
        ]

        def scattered(arrays: list[Any]) -> list[Any]:
            given = iter(arrays)
            return [
                self._scatter_one(next(given) if is_given else x, root, edge, cells)
                for x, cells in zip(leaves, whole, strict=True)
            ]

        is_given = root in (None, self.comm.Get_rank())
        arrays = list(map(jnp.asarray, leaves)) if is_given else []
        return _unflat(structure, _once(scattered)(arrays))

    @overload
    def gather(self, fields: T, *, root: None = None) -> T: ...

    @overload
    def gather(self, fields: T, *, root: Integer) -> T | None: ...

    def gather(self, fields: T, *, root: Integer | None = None) -> T | None:
        """Join the parts of all processes, without their ghost cells.

        Arguments:
            fields: An array, or a tree of arrays.
            root (int): The one process that gets them, if not all do.

        Returns:
            The fields of the whole grid, or None on a process that does not get them.

        """
        self._parts("gather")
        if root is not None:
            root = self._root("gather", root)
        names, leaves, structure = _flat(fields)
        extents = [
            self._extents("gather", name, x) for name, x in zip(names, leaves, strict=True)
        ]

        def gathered(arrays: list[Any]) -> list[Any]:
            pairs = zip(arrays, extents, strict=True)
            return [self._gather_one(x, of_leaf, root) for x, of_leaf in pairs]

        found = _once(gathered)(list(map(jnp.asarray, leaves)))
        if root not in (None, self.comm.Get_rank()):
            return None
        return _unflat(structure, found)

    @property
    def start(self) -> tuple[int, ...]:
        """The index of the first own cell of this process in the whole grid."""
        return tuple(part.start for part in self._parts("start"))

    @property
    def size(self) -> tuple[int, ...]:
        """The number of own cells of this process along each axis."""
        return tuple(map(len, self._parts("size")))

    def _parts(self, name: str) -> list[range]:
        if any(axis.cells is None for axis in self.axes):
            raise ValueError(
                f"halo.Plan.{name} has to know how many cells there are in all: make the "
                "plan with shape=..."
            )
        return [axis.own_part() for axis in self.axes]

    def _root(self, function: str, root: Any) -> int:
        root, size = integer(f"halo.Plan.{function}", "root", root), self.comm.Get_size()
        if not 0 <= root < size:
            raise ValueError(
                f"halo.Plan.{function} got {root} for argument `root`, expected a rank of "
                f"the communicator (0 to {size - 1})"
            )
        return root

    # The arrays.

    def _on_leaves(self, function: str, body: Callable[..., Any], fields: Any) -> Any:
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

    def _index(self, x: Any, parts: Sequence[slice]) -> tuple[slice, ...]:
        """The index of a part of an array, of slices along the plan's axes."""
        index = [slice(0, size) for size in x.shape]
        for axis, part in zip(self.axes, parts, strict=True):
            index[axis.place] = part
        return tuple(index)

    def _slab(
        self, x: Any, extents: Sequence[Extent], axis: int, part: slice
    ) -> tuple[slice, ...]:
        """The index of a slab: a part along an axis, and all that goes along with it."""
        parts = [slice(0, e.size) if self.corners else e.own for e in extents]
        parts[axis] = part
        return self._index(x, parts)

    # Messages.

    def _groups(self) -> list[list[Direction]]:
        """The directions in which cells travel at the same time, one group after another.

        With corners, these are the two of an axis.
        """
        if not self.corners:
            return [self._directions]
        groups = itertools.groupby(self._directions, lambda direction: direction.axis)
        return [list(group) for _, group in groups]

    def _exchange(
        self, leaves: list[Any], extents: tuple[tuple[Extent, ...], ...]
    ) -> list[Any]:
        # Messages are the same either way: those of one type are next to each other.
        order = sorted(range(len(leaves)), key=lambda n: str(leaves[n].dtype))
        leaves, extents = [leaves[n] for n in order], tuple(extents[n] for n in order)
        if not leaves or not self._directions or is_split.get():
            found = self._exchange_slabs(leaves, extents)
        else:
            found = exchange_p.bind(*leaves, plan=self, extents=extents)
        return [found[order.index(n)] for n in range(len(order))]

    def _exchange_in_place(
        self, leaves: list[Any], extents: Sequence[Sequence[Extent]]
    ) -> list[Any]:
        """The same by few copies of the core's, which writes ghost cells where they are."""
        groups = self._groups()
        layouts = [_Layout(self, group, leaves, extents) for group in groups]
        first = list(itertools.accumulate((len(x.types) for x in layouts), initial=0))
        types = list(itertools.chain(*(layout.types for layout in layouts)))
        copies = [
            copy
            for layout, start in zip(layouts, first[:-1], strict=True)
            for copy in layout.copies(_owned, lambda d: d.dest, start, is_taken=True)
        ]
        found = taken(leaves, types, sorted(copies, key=lambda copy: copy.source.place))
        sent = [found[start:end] for start, end in itertools.pairwise(first)]
        came: list[Any] = []
        for n, (group, layout) in enumerate(zip(groups, layouts, strict=True)):
            room = [jnp.zeros(aval.shape, aval.dtype) for aval in layout.types]
            ends = layout.by_direction(sent[n]), layout.by_direction(room)
            arrived = list(itertools.chain(*self._travel(*ends, group)))
            came += arrived
            for later in range(n + 1, len(groups)):
                copies = layout.passed_on(layouts[later])
                if copies:
                    sent[later] = put(sent[later], arrived, copies)
        copies = [
            copy
            for layout, start in zip(layouts, first[:-1], strict=True)
            for copy in layout.copies(_ghosts, lambda d: d.source, start, is_taken=False)
        ]
        return put(leaves, came, sorted(copies, key=lambda copy: copy.result.place))

    def _exchange_slabs(
        self, leaves: list[Any], extents: Sequence[Sequence[Extent]]
    ) -> list[Any]:
        # All slabs are read before any ghost cell is written: to have some read afterwards,
        # XLA would copy whole fields. So what comes goes into the slabs that are sent later
        # and, at the end, into the fields, the last first.
        groups = self._groups()
        sent = [[self._take(leaves, extents, d, _owned) for d in group] for group in groups]
        room = [
            [self._take(leaves, extents, d, _filled) for d in group] for group in groups
        ]
        came: list[Sequence[list[Any]]] = []
        for n, group in enumerate(groups):
            came.append(self._travel(sent[n], room[n], group))
            for later in range(n + 1, len(groups)):
                sent[later] = [
                    self._pass_on(came[n], group, slabs, d, extents)
                    for slabs, d in zip(sent[later], groups[later], strict=True)
                ]
        filled: list[Direction] = []
        for group, slabs_of_group in zip(reversed(groups), reversed(came), strict=True):
            for direction, slabs in zip(group, slabs_of_group, strict=True):
                leaves = self._put(leaves, extents, direction, _filled, slabs, filled)
            filled += group
        return leaves

    def _pass_on(
        self,
        came: Sequence[Sequence[Any]],
        group: Sequence[Direction],
        sent: Sequence[Any],
        later: Direction,
        extents: Sequence[Sequence[Extent]],
    ) -> list[Any]:
        """The slabs that are sent later, with the ghost cells in them that came before.

        Put together anew: that is one of XLA's kernels for each slab, where to write the
        ghost cells is one for each side.
        """
        place = self.axes[group[0].axis].place
        found = []
        for n, (x, of_leaf) in enumerate(zip(sent, extents, strict=True)):
            index = self._along(x.ndim, later.axis, _owned(of_leaf[later.axis], later))
            before = [c[n][index] for c, d in zip(came, group, strict=True) if d.is_up]
            behind = [c[n][index] for c, d in zip(came, group, strict=True) if not d.is_up]
            first = sum(slab.shape[place] for slab in before)
            last = x.shape[place] - sum(slab.shape[place] for slab in behind)
            rest = jax.lax.slice_in_dim(x, first, last, axis=place)
            found.append(jnp.concatenate([*before, rest, *behind], place))
        return found

    def _along(self, number: int, axis: int, part: slice) -> tuple[slice, ...]:
        """The index of a part along an axis, in an array of so many axes."""
        index = [slice(None)] * number
        index[self.axes[axis].place] = part
        return tuple(index)

    def _accumulate(
        self, leaves: list[Any], extents: Sequence[Sequence[Extent]]
    ) -> list[Any]:
        for group in reversed(self._groups()):
            back = [d._replace(source=d.dest, dest=d.source) for d in group]
            sent = [self._take(leaves, extents, d, _ghosts) for d in back]
            room = [self._take(leaves, extents, d, _added_to) for d in back]
            came = self._travel(sent, room, back)
            for direction, slabs in zip(back, sent, strict=True):
                if direction.dest != PROC_NULL:
                    nothing = list(map(jnp.zeros_like, slabs))
                    leaves = self._put(leaves, extents, direction, _ghosts, nothing)
            for direction, added in zip(back, came, strict=True):
                had = self._take(leaves, extents, direction, _added_to)
                slabs = [x + y for x, y in zip(had, added, strict=True)]
                leaves = self._put(leaves, extents, direction, _added_to, slabs)
        return leaves

    def _take(
        self,
        leaves: Sequence[Any],
        extents: Sequence[Sequence[Extent]],
        direction: Direction,
        part: Callable[[Extent, Direction], slice],
    ) -> list[Any]:
        found = []
        for x, of_leaf in zip(leaves, extents, strict=True):
            where = part(of_leaf[direction.axis], direction)
            found.append(x[self._slab(x, of_leaf, direction.axis, where)])
        return found

    def _put(
        self,
        leaves: Sequence[Any],
        extents: Sequence[Sequence[Extent]],
        direction: Direction,
        part: Callable[[Extent, Direction], slice],
        slabs: Sequence[Any],
        filled: Sequence[Direction] = (),
    ) -> list[Any]:
        """Write slabs, but for ghost cells that are filled already."""
        found = []
        for x, of_leaf, slab in zip(leaves, extents, slabs, strict=True):
            where = part(of_leaf[direction.axis], direction)
            index = list(self._slab(x, of_leaf, direction.axis, where))
            rest = [slice(0, size) for size in slab.shape]
            for other in filled:
                ghosts = _filled(of_leaf[other.axis], other)
                place = self.axes[other.axis].place
                for cells in (index, rest):
                    first, last = cells[place].start, cells[place].stop
                    if other.is_up:
                        cells[place] = slice(max(first, ghosts.stop), last)
                    else:
                        cells[place] = slice(first, min(last, ghosts.start))
            starts = [one.start for one in index]
            found.append(jax.lax.dynamic_update_slice(x, slab[tuple(rest)], starts))
        return found

    def _travel(
        self,
        sent: Sequence[list[Any]],
        room: Sequence[list[Any]],
        directions: Sequence[Direction],
    ) -> Sequence[list[Any]]:
        """What comes from each direction for what is sent in it.

        The calls of all processes have all directions, also where these have no end. So
        derivatives and maps, which look at arrays, find the same call everywhere. Also what
        a process sends to itself is a message: XLA would copy the whole field to have a
        part of it move within.
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
        self, x: Any, root: int | None, edge: Any, whole: Sequence[tuple[int, int]]
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
            return jnp.take(x, points, place, mode="fill", fill_value=edge)

        described = list(zip(self.axes, whole, places, strict=True))
        if root is None:
            for axis, (cells, more), place in described:
                x = taken(x, sources(axis, cells, more, axis.coordinate), place)
            return x
        # Parts of one size, the largest: those that are smaller have a rest.
        largest = [len(sources(axis, *found, 0)) for axis, found, _ in described]
        for place, size in zip(places, largest, strict=True):
            shape[place] = size
        if root == self.comm.Get_rank():
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
            x = jnp.zeros(shape, x.dtype)
        x = scatter(x, root, comm=self.comm)
        for axis, (cells, more), place in described:
            own = len(sources(axis, cells, more, axis.coordinate))
            x = jax.lax.slice_in_dim(x, 0, own, axis=place)
        return x

    def _gather_one(self, x: Any, extents: Sequence[Extent], root: int | None) -> Any:
        places = self._places(x.ndim)
        x = x[self._index(x, [extent.own for extent in extents])]
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
            if root != self.comm.Get_rank():
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
        return x.reshape(-1, *x.shape[len(front) :])

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


class _Layout:
    """Where the slabs of all fields are in the messages of a group of directions.

    There is a message for each direction and each type of array, one behind the other.
    """

    def __init__(
        self,
        plan: Plan,
        group: Sequence[Direction],
        leaves: Sequence[Any],
        extents: Sequence[Sequence[Extent]],
    ) -> None:
        self._plan, self._group = plan, group
        self._leaves, self._extents = leaves, extents
        self._dtypes = list(dict.fromkeys(x.dtype for x in leaves))
        self.types: list[ShapedArray] = []
        self._slabs: dict[tuple[Direction, int], View] = {}
        for direction in group:
            for dtype in self._dtypes:
                size = 0
                for n, x in enumerate(leaves):
                    if x.dtype == dtype:
                        part = self._in_field(n, direction, _owned)
                        view = View(
                            len(self.types), tuple(part.sizes), size, _all(part.sizes)
                        )
                        self._slabs[direction, n] = view
                        size += math.prod(part.sizes)
                self.types.append(ShapedArray((size,), dtype))

    def by_direction(self, messages: Sequence[Any]) -> list[list[Any]]:
        number = len(self._dtypes)
        starts = range(0, len(messages), number)
        return [list(messages[start : start + number]) for start in starts]

    def _in_field(
        self, n: int, direction: Direction, part: Callable[[Extent, Direction], slice]
    ) -> View:
        x, of_leaf = self._leaves[n], self._extents[n]
        where = part(of_leaf[direction.axis], direction)
        return View(n, x.shape, 0, self._plan._slab(x, of_leaf, direction.axis, where))

    def copies(
        self,
        part: Callable[[Extent, Direction], slice],
        process: Callable[[Direction], int],
        first: int,
        *,
        is_taken: bool,
    ) -> Iterator[Copy]:
        """The copies between fields and messages, for all directions with a process there.

        The messages of the group begin at the place `first` among all.
        """
        for (direction, n), slab in self._slabs.items():
            if process(direction) != PROC_NULL:
                ends = [
                    self._in_field(n, direction, part),
                    slab._replace(place=first + slab.place),
                ]
                yield Copy(*(ends if is_taken else reversed(ends)))

    def passed_on(self, later: _Layout) -> list[Copy]:
        """The copies of what has come to the messages of a later group, at the corners."""
        found = []
        for (direction, n), source in self._slabs.items():
            for (further, m), result in later._slabs.items():
                if n != m or PROC_NULL in (direction.source, further.dest):
                    continue
                of_leaf, axes = self._extents[n], self._plan.axes
                ends = []
                for slab, other, part in (
                    (source, further, _owned),
                    (result, direction, _ghosts),
                ):
                    index = list(slab.parts)
                    index[axes[other.axis].place] = part(of_leaf[other.axis], other)
                    ends.append(slab._replace(parts=tuple(index)))
                found.append(Copy(*ends))
        return found


def _all(sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in sizes)


# The exchange as a primitive, as what is done depends on the platform.

exchange_p = Primitive("halo_exchange_mpi")
exchange_p.multiple_results = True
def_eager(exchange_p)

Extents = tuple[tuple[Extent, ...], ...]


@exchange_p.def_effectful_abstract_eval
def _types(*avals: Any, plan: Plan, extents: Extents) -> Any:
    return [ShapedArray(x.shape, x.dtype) for x in avals], {ordered_effect}


def _by_slabs(*leaves: Any, plan: Plan, extents: Extents) -> list[Any]:
    return plan._exchange_slabs(list(leaves), extents)


def _on_cpu(*leaves: Any, plan: Plan, extents: Extents) -> list[Any]:
    avals = [ShapedArray(x.shape, x.dtype) for x in leaves]
    if any(carried(aval).dtype != aval.dtype for aval in avals):
        return plan._exchange_slabs(list(leaves), extents)
    return plan._exchange_in_place(list(leaves), extents)


def _push(primals: Any, tangents: Any, *, plan: Plan, extents: Extents) -> Any:
    results = exchange_p.bind(*primals, plan=plan, extents=extents)
    is_float = [jnp.issubdtype(x.dtype, jnp.inexact) for x in primals]
    given = [ad.instantiate_zeros(t) for t in itertools.compress(tangents, is_float)]
    of_given = tuple(itertools.compress(extents, is_float))
    pushed = iter(exchange_p.bind(*given, plan=plan, extents=of_given) if given else ())
    nothing = jax.dtypes.float0
    return results, [
        next(pushed) if n else ad.Zero(ShapedArray(x.shape, nothing))
        for x, n in zip(results, is_float, strict=True)
    ]


def _transpose(cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
    is_linear = list(map(ad.is_undefined_primal, operands))

    def function(*linear: Any) -> list[Any]:
        given = iter(linear)
        pairs = zip(operands, is_linear, strict=True)
        return _by_slabs(*(next(given) if n else x for x, n in pairs), **params)

    avals = [x.aval for x in itertools.compress(operands, is_linear)]
    arrived = list(map(ad.instantiate_zeros, cotangents))
    found = iter(jax.linear_transpose(function, *avals)(arrived))
    return [next(found) if n else None for n in is_linear]


def _batch(operands: Any, axes: Any, **params: Any) -> Any:
    def function(*leaves: Any) -> list[Any]:
        return _by_slabs(*leaves, **params)

    results = jax.vmap(function, in_axes=tuple(axes))(*operands)
    return results, [0] * len(results)


ad.primitive_jvps[exchange_p] = _push
ad.primitive_transposes[exchange_p] = _transpose
batching.primitive_batchers[exchange_p] = _batch
register_lowering(exchange_p, lower_at_its_line(_by_slabs))
register_lowering(exchange_p, lower_at_its_line(_on_cpu), platform="cpu")


def _flat(fields: Any) -> tuple[list[str], list[Any], Any]:
    """What the user knows the leaves of a tree by, the leaves, and the structure."""
    found, structure = jax.tree_util.tree_flatten_with_path(fields)
    names = [f"fields{jax.tree_util.keystr(path)}" for path, _ in found]
    return names, [leaf for _, leaf in found], structure


def _unflat(structure: Any, leaves: Sequence[Any]) -> Any:
    return jax.tree_util.tree_unflatten(structure, leaves)


def _once(function: Callable[..., T]) -> Callable[..., T]:
    """A function as one program, where it would be many."""
    if not trace_state_clean():
        return function
    lines.is_eager_call(function)
    return jax.jit(function)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(leaves: list[Any], extents: Any) -> Any:
        return function(leaves, extents)

    lines.is_eager_call(run)
    run.__name__ = f"halo{function.__name__}"
    return jax.jit(run, static_argnums=1)


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
