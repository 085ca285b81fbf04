"""The slabs of fields that processes send each other, as messages.

A message has the slabs of all fields of one type, one behind the other, and those of both
directions if these lead to the same process. To take them out of the fields and to put what
has come into the fields are linear functions. Their transposes add ghost cells to their
owners. On CPUs, each is one call of the core; elsewhere, XLA compiles a kernel for each
slab.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..arguments.dtypes import avals_of, has_carrier
from ..layout import copies
from ..layout.concatenation import concatenate, split
from ..layout.copies import Copy, View
from ..operations._arguments import PROC_NULL
from ..operations._transposes import is_inexact, tangents_of
from ..xla.jax_compat import (
    ShapedArray,
    VaryingPrimitive,
    ad,
    batching,
    def_eager,
    lower_function,
    register_lowering,
)

#: The tags of messages begin here: where users have none, and all MPIs have some
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


#: Of each field, along each divided axis.
Extents = tuple[tuple[Extent, ...], ...]

#: A part along an axis, for a direction.
Part = Callable[[Extent, Direction], slice]


def ghosts(extent: Extent, direction: Direction) -> slice:
    """The ghost cells that what comes in a direction fills."""
    if direction.is_up:
        return slice(0, extent.before)
    return slice(extent.size - extent.behind, extent.size)


def owned(extent: Extent, direction: Direction) -> slice:
    """The own cells that are the ghosts of the next process in a direction."""
    if direction.is_up:
        end = extent.size - extent.behind - extent.shared
        return slice(end - extent.before, end)
    start = extent.before + extent.shared
    return slice(start, start + extent.behind)


class Geometry(NamedTuple):
    """Which slabs there are, and the order in which they travel."""

    #: The place of each axis in the arrays.
    places: tuple[int, ...]
    #: Whether a slab has the ghost cells along the other axes, too.
    corners: bool
    #: The directions between processes. Those of a group are in flight at the same time.
    groups: tuple[tuple[Direction, ...], ...]
    #: Those of a process to itself, along periodic axes that are not divided.
    within: tuple[tuple[Direction, ...], ...]

    def index_of(self, number: int, parts: Sequence[slice]) -> tuple[slice, ...]:
        """The index of a part of an array of so many axes, by slices along the plan's."""
        index = [slice(None)] * number
        for place, part in zip(self.places, parts, strict=True):
            index[place] = part
        return tuple(index)

    def along(self, number: int, axis: int, part: slice) -> tuple[slice, ...]:
        """The index of a part along one axis."""
        parts = [slice(None)] * len(self.places)
        parts[axis] = part
        return self.index_of(number, parts)

    def slab(
        self, shape: Sequence[int], extents: Sequence[Extent], axis: int, part: slice
    ) -> tuple[slice, ...]:
        """Where a slab is: a part along an axis, and all that goes along with it."""
        parts = [slice(None) if self.corners else extent.own for extent in extents]
        parts[axis] = part
        pairs = zip(self.index_of(len(shape), parts), shape, strict=True)
        return tuple(slice(*one.indices(size)[:2]) for one, size in pairs)

    def take(
        self, leaves: Sequence[Any], extents: Extents, direction: Direction
    ) -> list[Any]:
        """The slabs of all fields that are sent in a direction."""
        found = []
        for x, of_leaf in zip(leaves, extents, strict=True):
            where = owned(of_leaf[direction.axis], direction)
            found.append(x[self.slab(x.shape, of_leaf, direction.axis, where)])
        return found

    def put(
        self,
        leaves: Sequence[Any],
        extents: Extents,
        direction: Direction,
        slabs: Sequence[Any],
        filled: Sequence[Direction] = (),
    ) -> list[Any]:
        """Write slabs that have come, but for ghost cells that are filled already.

        Where nothing comes, none of a slab is written: JAX sees that the result depends on
        the call nevertheless, and XLA has nothing to do.
        """
        found = []
        for x, of_leaf, slab in zip(leaves, extents, slabs, strict=True):
            where = ghosts(of_leaf[direction.axis], direction)
            if direction.source == PROC_NULL:
                where = slice(where.start, where.start)
                slab = slab[self.along(x.ndim, direction.axis, slice(0, 0))]
            index = list(self.slab(x.shape, of_leaf, direction.axis, where))
            rest = [slice(0, size) for size in slab.shape]
            for other in filled:
                there = ghosts(of_leaf[other.axis], other)
                place = self.places[other.axis]
                for cells in (index, rest):
                    first, last = cells[place].start, cells[place].stop
                    if other.is_up:
                        cells[place] = slice(max(first, there.stop), last)
                    else:
                        cells[place] = slice(first, min(last, there.start))
            starts = [one.start for one in index]
            found.append(jax.lax.dynamic_update_slice(x, slab[tuple(rest)], starts))
        return found

    def pass_on(
        self,
        came: Sequence[Sequence[Any]],
        group: Sequence[Direction],
        sent: Sequence[Any],
        later: Direction,
        extents: Extents,
    ) -> list[Any]:
        """The slabs that are sent later, with the ghost cells in them that came before.

        Put together anew: that is one of XLA's kernels for each slab, where to write the
        ghost cells is one for each side.
        """
        place = self.places[group[0].axis]
        arrived = [
            (c, d) for c, d in zip(came, group, strict=True) if d.source != PROC_NULL
        ]
        found = []
        for n, (x, of_leaf) in enumerate(zip(sent, extents, strict=True)):
            index = self.along(x.ndim, later.axis, owned(of_leaf[later.axis], later))
            before = [slabs[n][index] for slabs, d in arrived if d.is_up]
            behind = [slabs[n][index] for slabs, d in arrived if not d.is_up]
            first = sum(slab.shape[place] for slab in before)
            last = x.shape[place] - sum(slab.shape[place] for slab in behind)
            rest = jax.lax.slice_in_dim(x, first, last, axis=place)
            found.append(jnp.concatenate([*before, rest, *behind], place))
        return found


def _bundles(group: Sequence[Direction]) -> list[tuple[Direction, ...]]:
    """Which directions of a group travel in one message.

    On a periodic axis of two processes, both directions lead to the same one.
    """
    found = itertools.groupby(group, lambda d: (d.axis, d.source, d.dest))
    return [tuple(bundle) for _, bundle in found]


class _Layout:
    """Where the slabs of all fields are in the messages of a group of directions.

    There is a message for each bundle of directions and each type of array. The first one
    is at the place `first` among the messages of all groups.
    """

    def __init__(
        self,
        geometry: Geometry,
        group: Sequence[Direction],
        leaves: Sequence[Any],
        extents: Extents,
        first: int,
    ) -> None:
        self._geometry, self._leaves, self._extents = geometry, leaves, extents
        self.group, self.first = group, first
        self.bundles = _bundles(group)
        dtypes = list(dict.fromkeys(x.dtype for x in leaves))
        #: Which slabs each message has, by direction and field.
        self._contents: list[list[tuple[Direction, int]]] = []
        self.types: list[ShapedArray] = []
        self.slabs: dict[tuple[Direction, int], View] = {}
        for bundle, dtype in itertools.product(self.bundles, dtypes):
            fields = [n for n, x in enumerate(leaves) if x.dtype == dtype]
            contents = list(itertools.product(bundle, fields))
            size = 0
            for direction, n in contents:
                shape = tuple(self.in_field(n, direction, owned).sizes)
                parts = tuple(slice(0, length) for length in shape)
                self.slabs[direction, n] = View(self.end, shape, size, parts)
                size += math.prod(shape)
            self._contents.append(contents)
            self.types.append(ShapedArray((size,), dtype))

    @property
    def end(self) -> int:
        return self.first + len(self.types)

    @property
    def directions(self) -> list[Direction]:
        """The first direction of each bundle, for all of it."""
        return [bundle[0] for bundle in self.bundles]

    def by_bundle(self, messages: Sequence[Any]) -> list[list[Any]]:
        number = len(self.types) // len(self.bundles)
        starts = range(0, len(messages), number)
        return [list(messages[start : start + number]) for start in starts]

    def in_field(self, n: int, direction: Direction, part: Part) -> View:
        x, of_leaf = self._leaves[n], self._extents[n]
        where = part(of_leaf[direction.axis], direction)
        slab = self._geometry.slab(x.shape, of_leaf, direction.axis, where)
        return View(n, x.shape, 0, slab)

    def passed_on(self, later: _Layout) -> list[Copy]:
        """The copies of what has come to the messages of a later group, at the corners.

        What has come is behind the fields.
        """
        found = []
        for (direction, n), source in self.slabs.items():
            for (further, m), result in later.slabs.items():
                if n != m or PROC_NULL in (direction.source, further.dest):
                    continue
                of_leaf = self._extents[n]
                ends = []
                for slab, other, part in (
                    (source, further, owned),
                    (result, direction, ghosts),
                ):
                    index = list(slab.parts)
                    place = self._geometry.places[other.axis]
                    index[place] = part(of_leaf[other.axis], other)
                    ends.append(slab._replace(parts=tuple(index)))
                found.append(Copy(*ends).moved(source=len(self._leaves)))
        return found

    def pack(self, slabs: Sequence[Sequence[Any]]) -> list[Any]:
        """The messages that have the slabs sent in each direction."""
        given = dict(zip(self.group, slabs, strict=True))
        return [
            concatenate([given[direction][n].ravel() for direction, n in contents])
            for contents in self._contents
        ]

    def unpack(self, came: Sequence[Any]) -> list[list[Any]]:
        """The slabs that have come from each direction, of the messages of all groups."""
        found: dict[tuple[Direction, int], Any] = {}
        messages = came[self.first : self.end]
        for message, contents in zip(messages, self._contents, strict=True):
            shapes = [self.slabs[slab].shape for slab in contents]
            parts = split(message, list(map(math.prod, shapes)))
            for slab, part, shape in zip(contents, parts, shapes, strict=True):
                found[slab] = part.reshape(shape)
        return [[found[d, n] for n in range(len(self._leaves))] for d in self.group]


def _layouts(geometry: Geometry, leaves: Sequence[Any], extents: Extents) -> list[_Layout]:
    """The layout of each group."""
    found: list[_Layout] = []
    for group in geometry.groups:
        first = found[-1].end if found else 0
        found.append(_Layout(geometry, group, leaves, extents, first))
    return found


def _zeros(types: Sequence[ShapedArray]) -> list[Any]:
    return [jnp.zeros(aval.shape, aval.dtype) for aval in types]


# What is sent in a group of directions, of the fields and of what came in groups before.
# They are results as well, unchanged: so each is used once, and its cotangent can be
# updated in place.


def _types_to_send(
    *avals: Any, geometry: Geometry, extents: Extents, group: int
) -> list[ShapedArray]:
    leaves = avals[: len(extents)]
    return [*avals_of(avals), *_layouts(geometry, leaves, extents)[group].types]


def _take_by_xla(
    *operands: Any, geometry: Geometry, extents: Extents, group: int
) -> list[Any]:
    leaves, came = operands[: len(extents)], operands[len(extents) :]
    *earlier, layout = _layouts(geometry, leaves, extents)[: group + 1]
    arrived = [(before.unpack(came), before.group) for before in earlier]
    found = []
    for direction in layout.group:
        slabs = geometry.take(leaves, extents, direction)
        for slabs_before, before in arrived:
            slabs = geometry.pass_on(slabs_before, before, slabs, direction, extents)
        found.append(slabs)
    return [*operands, *layout.pack(found)]


def _take_by_core(
    *operands: Any, geometry: Geometry, extents: Extents, group: int
) -> list[Any]:
    layouts = _layouts(geometry, operands[: len(extents)], extents)[: group + 1]
    found = _copies_to_send(layouts)
    return [*operands, *copies.taken(operands, layouts[-1].types, found)]


def _copies_to_send(layouts: Sequence[_Layout]) -> list[Copy]:
    """From the fields, and what came before, to the messages of the last group."""
    *earlier, layout = layouts
    found = [
        Copy(layout.in_field(n, direction, owned), slab)
        for (direction, n), slab in layout.slabs.items()
        if direction.dest != PROC_NULL
    ]
    found.sort(key=lambda copy: copy.source.place)
    for before in earlier:
        found += before.passed_on(layout)
    return [copy.moved(result=-layout.first) for copy in found]


# The transpose: what was sent is added to where it was taken.


def _types_before_sending(
    *avals: Any, geometry: Geometry, extents: Extents, group: int
) -> list[ShapedArray]:
    layout = _layouts(geometry, avals[: len(extents)], extents)[group]
    return avals_of(avals[: len(avals) - len(layout.types)])


def _untake(
    give_back: Callable[[Sequence[Any], Sequence[Copy]], list[Any]],
    *operands: Any,
    geometry: Geometry,
    extents: Extents,
    group: int,
) -> list[Any]:
    layouts = _layouts(geometry, operands[: len(extents)], extents)[: group + 1]
    rest = len(operands) - len(layouts[-1].types)
    found = _copies_to_send(layouts)
    return give_back(operands, [copy.moved(result=rest) for copy in found])[:rest]


# The fields, with the ghost cells that have come.


def _types_of_fields(*avals: Any, extents: Extents, **_: Any) -> list[ShapedArray]:
    return avals_of(avals[: len(extents)])


def _put_by_xla(*operands: Any, geometry: Geometry, extents: Extents) -> list[Any]:
    # All slabs were read before any ghost cell is written: to have some read afterwards,
    # XLA would copy whole fields. So the last ones go first.
    leaves, came = list(operands[: len(extents)]), operands[len(extents) :]
    filled: list[Direction] = []
    for layout in reversed(_layouts(geometry, leaves, extents)):
        for direction, slabs in zip(layout.group, layout.unpack(came), strict=True):
            leaves = geometry.put(leaves, extents, direction, slabs, filled)
        filled += [d for d in layout.group if d.source != PROC_NULL]
    for group in geometry.within:
        taken = [geometry.take(leaves, extents, d) for d in group]
        # For the same reason, not in the kernels that write them.
        taken = jax.lax.optimization_barrier(taken)
        for direction, slabs in zip(group, taken, strict=True):
            leaves = geometry.put(leaves, extents, direction, slabs)
    return leaves


def _put_by_core(*operands: Any, geometry: Geometry, extents: Extents) -> list[Any]:
    leaves, came = operands[: len(extents)], operands[len(extents) :]
    layouts = _layouts(geometry, leaves, extents)
    found = _copies_to_fields(layouts, leaves, geometry, extents)
    return copies.put(leaves, came, found)


def _copies_to_fields(
    layouts: Sequence[_Layout],
    leaves: Sequence[Any],
    geometry: Geometry,
    extents: Extents,
) -> list[Copy]:
    """From what has come, or from the fields, which are behind that, to the fields."""
    found = [
        Copy(slab, layout.in_field(n, direction, ghosts))
        for layout in layouts
        for (direction, n), slab in layout.slabs.items()
        if direction.source != PROC_NULL
    ]
    fields = layouts[-1].end if layouts else 0
    for group in geometry.within:
        layout = _Layout(geometry, group, leaves, extents, 0)
        for direction, n in layout.slabs:
            ends = (layout.in_field(n, direction, part) for part in (owned, ghosts))
            found.append(Copy(*ends).moved(source=fields))
    return sorted(found, key=lambda copy: copy.result.place)


# The transpose: what has come is where it went, and no longer in the ghost cells.


def _types_of_arrivals(
    *avals: Any, geometry: Geometry, extents: Extents
) -> list[ShapedArray]:
    return [*avals_of(avals), *_arrivals(_layouts(geometry, avals, extents))]


def _arrivals(layouts: Sequence[_Layout]) -> list[ShapedArray]:
    """The types of the messages of all groups."""
    return list(itertools.chain.from_iterable(layout.types for layout in layouts))


def _unput(
    give_back: Callable[[Sequence[Any], Sequence[Copy]], list[Any]],
    *leaves: Any,
    geometry: Geometry,
    extents: Extents,
) -> list[Any]:
    layouts = _layouts(geometry, leaves, extents)
    came = _zeros(_arrivals(layouts))
    found = _copies_to_fields(layouts, leaves, geometry, extents)
    back = give_back([*came, *leaves], [copy.moved(result=len(came)) for copy in found])
    return [*back[len(came) :], *back[: len(came)]]


def _linear(
    name: str,
    types: Callable[..., list[ShapedArray]],
    by_xla: Callable[..., list[Any]],
    by_core: Callable[..., list[Any]],
    in_core: Callable[[Any], bool],
) -> VaryingPrimitive:
    """A linear function of fields and messages, as a primitive.

    Arguments:
        name: Its name.
        types: Gives the types of its results.
        by_xla: What it does.
        by_core: The same on CPUs, for arrays of some types.
        in_core: Whether an array is of one of these.

    """
    primitive = VaryingPrimitive(f"{name}_slabs_mpi")
    primitive.multiple_results = True
    primitive.def_abstract_eval(types)
    def_eager(primitive)

    def push(primals: Any, tangents: Any, *, extents: Extents, **params: Any) -> Any:
        results = primitive.bind(*primals, extents=extents, **params)
        is_given = list(map(is_inexact, primals))
        given = map(ad.instantiate_zeros, itertools.compress(tangents, is_given))
        params["extents"] = tuple(itertools.compress(extents, is_given))
        pushed = primitive.bind(*given, **params) if any(is_given) else []
        return results, tangents_of(results, pushed)

    def batch(operands: Any, axes: Any, **params: Any) -> Any:
        def function(*members: Any) -> list[Any]:
            return by_xla(*members, **params)

        results = jax.vmap(function, in_axes=tuple(axes))(*operands)
        return results, [0] * len(results)

    def on_cpu(*operands: Any, **params: Any) -> list[Any]:
        is_core = all(map(in_core, operands))
        return (by_core if is_core else by_xla)(*operands, **params)

    ad.primitive_jvps[primitive] = push
    batching.primitive_batchers[primitive] = batch
    register_lowering(primitive, lower_function(by_xla, multiple_results=True))
    on_cpu_too = lower_function(on_cpu, multiple_results=True)
    register_lowering(primitive, on_cpu_too, platform="cpu")
    return primitive


def _can_copy(x: Any) -> bool:
    return not has_carrier(x)


def _can_add(x: Any) -> bool:
    return str(x.dtype) in copies.ADDED


def _transposes(one: VaryingPrimitive, other: VaryingPrimitive) -> None:
    """Make each of two functions the derivative's transpose of the other."""
    for primitive, back in ((one, other), (other, one)):

        def transpose(
            cotangents: Any, *operands: Any, back: VaryingPrimitive = back, **params: Any
        ) -> list[Any]:
            found = back.bind(*map(ad.instantiate_zeros, cotangents), **params)
            pairs = zip(operands, found, strict=True)
            return [y if ad.is_undefined_primal(x) else None for x, y in pairs]

        ad.primitive_transposes[primitive] = transpose


def _transposed(
    name: str,
    types: Callable[..., list[ShapedArray]],
    function: Callable[..., list[Any]],
) -> VaryingPrimitive:
    by_xla = functools.partial(function, copies.given_back_by_xla)
    by_core = functools.partial(function, copies.given_back)
    return _linear(name, types, by_xla, by_core, _can_add)


take_p = _linear("take", _types_to_send, _take_by_xla, _take_by_core, _can_copy)
untake_p = _transposed("untake", _types_before_sending, _untake)
_transposes(take_p, untake_p)
put_p = _linear("put", _types_of_fields, _put_by_xla, _put_by_core, _can_copy)
unput_p = _transposed("unput", _types_of_arrivals, _unput)
_transposes(put_p, unput_p)


#: Gives what comes from each of some directions, for what is sent in them and for arrays
#: like those that come.
Travel = Callable[[Any, Any, Sequence[Direction]], Sequence[list[Any]]]


def exchange(
    geometry: Geometry, leaves: Sequence[Any], extents: Extents, travel: Travel
) -> list[Any]:
    """The fields with ghost cells of other processes.

    Arguments:
        geometry: Which cells these are.
        leaves: The fields.
        extents: Where their cells are.
        travel: Sends messages and receives others.

    """
    params = {"geometry": geometry, "extents": extents}
    arrays = list(leaves)
    for n, layout in enumerate(_layouts(geometry, leaves, extents)):
        taken = take_p.bind(*arrays, **params, group=n)
        arrays, sent = taken[: len(arrays)], taken[len(arrays) :]
        arrays += _travelled(layout, sent, layout.directions, travel)
    found: list[Any] = put_p.bind(*arrays, **params)
    return found


def accumulate(
    geometry: Geometry, leaves: Sequence[Any], extents: Extents, travel: Travel
) -> list[Any]:
    """The transpose of an exchange: the same, backwards."""
    params = {"geometry": geometry, "extents": extents}
    arrays = unput_p.bind(*leaves, **params)
    layouts = _layouts(geometry, leaves, extents)
    for n, layout in reversed(list(enumerate(layouts))):
        first = len(leaves) + layout.first
        arrays, sent = arrays[:first], arrays[first:]
        back = [d._replace(source=d.dest, dest=d.source) for d in layout.directions]
        came = _travelled(layout, sent, back, travel)
        arrays = untake_p.bind(*arrays, *came, **params, group=n)
    return list(arrays)


def _travelled(
    layout: _Layout, sent: Sequence[Any], directions: Sequence[Direction], travel: Travel
) -> list[Any]:
    """What comes for the messages that are sent."""
    room = layout.by_bundle(_zeros(layout.types))
    came = travel(layout.by_bundle(sent), room, directions)
    return list(itertools.chain(*came))
