"""The slabs of fields that processes send each other, as messages.

A message has the slabs of all fields of one type, one after the other, and those of both
directions if these lead to the same process. Lists of copies define which cells go into the
messages of a group of directions, and which come out of them. An exchange is the product of
these linear functions and of the operation `exchange`. To accumulate is its transpose: the
transposed factors in the reverse order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..moved.copies import Copy, CopyList, View
from ..mpi.handles import Communicator
from ..operations._arguments import PROC_NULL
from ..operations._messages import Messages
from ..operations.exchange import Exchange
from ..xla.jax_compat import ShapedArray

#: The tags of messages begin here: where users have none, and all MPIs have some
#: (MPI-4.1 §9.1.2).
FIRST_TAG = 32767 - 64


class Direction(NamedTuple):
    """One way in which cells travel along an axis: to the upper or the lower neighbor."""

    axis: int
    is_upward: bool
    #: The ranks of the neighbors, or what stands for them: on a mesh.
    source: int
    dest: int
    #: Whether the grid ends there for some of the processes, of which none knows whether it
    #: is one of them before it runs.
    may_end: bool

    @property
    def tag(self) -> int:
        return FIRST_TAG + 2 * self.axis + self.is_upward


class Extent(NamedTuple):
    """Which points an array has along an axis."""

    size: int
    #: The halo width: the number of ghost cells on either side.
    lower: int
    upper: int
    #: How many of its own points a process has in common with each of its neighbors, as
    #: those on the faces between two cells.
    shared: int

    @property
    def own(self) -> range:
        return range(self.lower, self.size - self.upper)

    def ghosts(self, direction: Direction) -> range:
        """The ghost cells that are received in a direction."""
        if direction.is_upward:
            return range(self.lower)
        return range(self.size - self.upper, self.size)

    def sent(self, direction: Direction) -> range:
        """The own points that are the ghost cells of the next process in a direction."""
        if direction.is_upward:
            stop = self.size - self.upper - self.shared
            return range(stop - self.lower, stop)
        start = self.lower + self.shared
        return range(start, start + self.upper)


#: Of each field, along each divided axis.
Extents = tuple[tuple[Extent, ...], ...]


class Geometry(NamedTuple):
    """Which slabs are exchanged, and in which order."""

    #: The position of each axis in the arrays.
    positions: tuple[int, ...]
    #: Whether a slab has the ghost cells along the other axes, too.
    corners: bool
    #: The directions between processes. Those of a group are in flight at the same time.
    groups: tuple[tuple[Direction, ...], ...]
    #: Those of a process to itself, along periodic axes that are not divided.
    within: tuple[tuple[Direction, ...], ...]

    def ranges(self, shape: Sequence[int], parts: Sequence[range]) -> tuple[range, ...]:
        """The ranges of a part of an array, from those along the plan's axes."""
        ranges = list(map(range, shape))
        for position, part in zip(self.positions, parts, strict=True):
            ranges[position] = part
        return tuple(ranges)


class Fields:
    """Where the slabs of all fields are in the arrays."""

    def __init__(
        self, geometry: Geometry, leaves: Sequence[Array], extents: Extents
    ) -> None:
        self.geometry, self.extents = geometry, extents
        self.types = avals_of(leaves)
        self.dtypes = list(dict.fromkeys(x.dtype for x in leaves))

    def __len__(self) -> int:
        return len(self.types)

    def slab(self, field: int, axis: int, cells: range) -> View:
        """Some cells of a field along an axis, with all that is sent along with them."""
        shape, extents = self.types[field].shape, self.extents[field]
        parts = [
            range(extent.size) if self.geometry.corners else extent.own
            for extent in extents
        ]
        parts[axis] = cells
        return View(field, shape, 0, self.geometry.ranges(shape, parts))

    def sent(self, field: int, direction: Direction) -> View:
        cells = self.extents[field][direction.axis].sent(direction)
        return self.slab(field, direction.axis, cells)

    def ghosts(self, field: int, direction: Direction) -> View:
        cells = self.extents[field][direction.axis].ghosts(direction)
        return self.slab(field, direction.axis, cells)

    def position(self, direction: Direction) -> int:
        """The position in the arrays of the axis along which cells travel."""
        return self.geometry.positions[direction.axis]


class Layout:
    """Where the slabs are in the messages of a group of directions.

    There is a message for each bundle of directions and each type of array. The messages of
    all groups are numbered like arrays that come after the fields.

    Where the program finds out which messages there are, the old ghost cells are arrays
    like those received: an exchange leaves them where nothing comes.
    """

    def __init__(self, fields: Fields, group: Sequence[Direction], first: int) -> None:
        self.fields = fields
        self.group = group
        #: The index of the first message.
        self.first = first
        # On a periodic axis of two processes, both directions lead to the same one.
        self.bundles = [
            tuple(bundle)
            for _, bundle in itertools.groupby(group, lambda d: (d.axis, d.source, d.dest))
        ]
        self.types: list[ShapedArray] = []
        #: The slab of each direction and field.
        self.slabs: dict[tuple[Direction, int], View] = {}
        for bundle, dtype in itertools.product(self.bundles, fields.dtypes):
            of_dtype = [n for n, x in enumerate(fields.types) if x.dtype == dtype]
            size = 0
            for direction, field in itertools.product(bundle, of_dtype):
                shape = tuple(fields.sent(field, direction).sizes)
                ranges = tuple(map(range, shape))
                self.slabs[direction, field] = View(self.end, shape, size, ranges)
                size += math.prod(shape)
            self.types.append(ShapedArray((size,), dtype))
        self.has_old_ghosts = any(direction.may_end for direction in group)

    @property
    def end(self) -> int:
        return self.first + len(self.types)

    @property
    def appended(self) -> list[ShapedArray]:
        """The types of the messages, and of the arrays with the old ghost cells."""
        return self.types * (1 + self.has_old_ghosts)

    def old_ghosts(self, slab: View) -> View:
        """Where the old ghost cells are that a slab of a message replaces."""
        return slab._replace(array=slab.array + len(self.types))

    def pack(self) -> tuple[Copy, ...]:
        """The copies from the fields to the messages, and of the old ghost cells."""
        copies = [
            Copy(self.fields.sent(field, direction), slab)
            for (direction, field), slab in self.slabs.items()
            if direction.dest != PROC_NULL
        ]
        if self.has_old_ghosts:
            copies += [
                Copy(self.fields.ghosts(field, direction), self.old_ghosts(slab))
                for (direction, field), slab in self.slabs.items()
            ]
        return tuple(sorted(copies, key=lambda copy: copy.source.array))

    def forward(self, later: Layout) -> tuple[Copy, ...]:
        """The copies from these messages to those of a later group, at the corners.

        There, the ghost cells are received in this group and sent in the later one.
        """
        copies = []
        for (received, field), source in self.slabs.items():
            for (sent, other_field), result in later.slabs.items():
                if field != other_field or PROC_NULL in (received.source, sent.dest):
                    continue
                extents = self.fields.extents[field]
                ghosts = extents[received.axis].ghosts(received)
                result = result.along(self.fields.position(received), ghosts)
                position, extent = self.fields.position(sent), extents[sent.axis]
                copies.append(Copy(source.along(position, extent.sent(sent)), result))
                if later.has_old_ghosts:
                    corner = source.along(position, extent.ghosts(sent))
                    copies.append(Copy(corner, later.old_ghosts(result)))
        return tuple(copies)

    def unpack(self, later: Sequence[Direction]) -> list[Copy]:
        """The copies from the messages to the ghost cells of the fields.

        Those ghost cells are left out that slabs of later directions have, too.
        """
        copies = []
        for (direction, field), source in self.slabs.items():
            if direction.source == PROC_NULL:
                continue
            copy = Copy(source, self.fields.ghosts(field, direction))
            for other in later:
                position = self.fields.position(other)
                ghosts = self.fields.extents[field][other.axis].ghosts(other)
                cells = copy.result.ranges[position]
                # Both views have all cells along the axis of a later direction.
                if other.is_upward:
                    cells = range(max(cells.start, ghosts.stop), cells.stop)
                else:
                    cells = range(cells.start, min(cells.stop, ghosts.start))
                copy = Copy(*(view.along(position, cells) for view in copy))
            copies.append(copy)
        return copies

    def exchange(
        self,
        arrays: Sequence[Array],
        communicator: Communicator,
        numbers: Sequence[Array],
    ) -> list[Array]:
        """Exchange the messages of all bundles, and give those received.

        The calls of all processes have all directions, also where these have no end. So
        derivatives and maps, which look at arrays, find the same call everywhere.
        """
        if self.has_old_ghosts:
            return self._operation(communicator).bind(*arrays, *numbers)
        buffers = [jnp.zeros(x.shape, x.dtype) for x in self.types]
        return self._operation(communicator).bind(*arrays, *buffers, *numbers)

    def give_back(
        self,
        messages: Sequence[Array],
        communicator: Communicator,
        numbers: Sequence[Array],
    ) -> list[Array]:
        """The transpose of :meth:`exchange`."""
        forwards = self._operation(communicator)
        buffers = [jnp.zeros(x.shape, x.dtype) for x in self.types]
        returned = forwards.transpose(*messages, *buffers, *buffers, *numbers)
        return list(returned[: len(self.appended)])

    def _operation(self, communicator: Communicator) -> Exchange:
        directions = [bundle[0] for bundle in self.bundles]
        dests = tuple(direction.dest for direction in directions)
        sources = tuple(direction.source for direction in directions)
        tags = tuple(direction.tag for direction in directions)
        arrays_of_each = (len(self.fields.dtypes),) * len(directions)
        return Exchange(
            communicator,
            sent=Messages(dests, tags, arrays_of_each),
            received=Messages(sources, tags, arrays_of_each),
        )


def _layouts(fields: Fields) -> list[Layout]:
    """The layout of each group."""
    layouts: list[Layout] = []
    for group in fields.geometry.groups:
        first = layouts[-1].end if layouts else len(fields)
        layouts.append(Layout(fields, group, first))
    return layouts


def _packing(layouts: Sequence[Layout]) -> CopyList:
    """Append the messages of the last group to the fields and the messages received so far.

    All slabs are taken from the fields as they were before the first group. The ghost cells
    in them that the earlier groups have filled come from the messages of these.
    """
    *earlier, last = layouts
    forwarded = [layout.forward(last) for layout in earlier]
    return CopyList((last.pack(), *forwarded), appended=tuple(last.appended))


def _unpacking(fields: Fields, layouts: Sequence[Layout]) -> CopyList:
    """Fill the ghost cells of the fields, and drop the messages of all groups."""
    # The ghost cells of the last group come first: the slabs of all groups have been read
    # by then, and XLA can write into the fields without a copy of them.
    copies: list[Copy] = []
    later: list[Direction] = []
    for layout in reversed(layouts):
        copies += layout.unpack(later)
        later += [d for d in layout.group if d.source != PROC_NULL]
    copies.sort(key=lambda copy: copy.result.array)
    within = [
        tuple(
            Copy(fields.sent(field, direction), fields.ghosts(field, direction))
            for field in range(len(fields))
            for direction in group
        )
        for group in fields.geometry.within
    ]
    types = itertools.chain.from_iterable(layout.types for layout in layouts)
    return CopyList((tuple(copies), *within), dropped=tuple(types))


#: What an exchange does, or its transpose.
Step = Callable[
    [Geometry, Sequence[Array], Sequence[Array], Extents, Communicator], list[Array]
]


def exchange(
    geometry: Geometry,
    leaves: Sequence[Array],
    numbers: Sequence[Array],
    extents: Extents,
    communicator: Communicator,
) -> list[Array]:
    """The fields with the ghost cells that other processes send.

    Arguments:
        geometry: Which cells these are.
        leaves: The fields.
        numbers: The operand with the ranks that the program computes, if there is one.
        extents: Where their cells are.
        communicator: The communicator of the processes.

    """
    fields = Fields(geometry, leaves, extents)
    layouts = _layouts(fields)
    arrays = list(leaves)
    for n, layout in enumerate(layouts):
        arrays = _packing(layouts[: n + 1]).apply(arrays)
        messages = arrays[layout.first :]
        arrays[layout.first :] = layout.exchange(messages, communicator, numbers)
    return _unpacking(fields, layouts).apply(arrays)


def accumulate(
    geometry: Geometry,
    leaves: Sequence[Array],
    numbers: Sequence[Array],
    extents: Extents,
    communicator: Communicator,
) -> list[Array]:
    """The transpose of an exchange: those of its steps, from the last to the first."""
    fields = Fields(geometry, leaves, extents)
    layouts = _layouts(fields)
    arrays = _unpacking(fields, layouts).transpose().apply(leaves)
    for n, layout in reversed(list(enumerate(layouts))):
        messages = arrays[layout.first :]
        arrays[layout.first :] = layout.give_back(messages, communicator, numbers)
        arrays = _packing(layouts[: n + 1]).transpose().apply(arrays)
    return arrays
