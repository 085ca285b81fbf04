"""Particles that move to other processes.

Which ones are sent is agreed on first, by counts. Each process grants others as many as it
has room for once its own have left. If that is less than all of them on some process, the
others may be left with more than they have room for, as some of their own have to stay. So
all withdraw what is too much, several times, as this goes on from process to process. Where
full processes send in circles, this may take too long. Then all grant no more than what is
free now, which needs nobody to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import array, integer, reject
from ..arguments.dtypes import SUM
from ..arguments.types import Array, ArrayLike, Comm, Integer, PyTree, Unchecked
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.tags import MIGRATION
from ..operations._eager import PlanCall, on_own_devices, run_named
from ..operations._messages import Messages
from ..operations.allreduce import AllReduce
from ..operations.alltoall import AllToAll
from ..operations.exchange import Exchange
from .leaf_rows import LeafRows

#: Numbers of particles that a process may send to each process, and that come from each.
Counts: TypeAlias = tuple[Array, Array]
#: Counts, and totals of all processes.
State: TypeAlias = tuple[Array, Array, Array]

NAME = "unstructured.migrate"

#: How often processes withdraw what is too much.
ROUNDS = 8


class Migrated(NamedTuple):
    """Result of :func:`migrate`."""

    #: The tree of arrays: first the particles that have stayed, then those that came from
    #: each process, by rank. Behind them are zeros.
    particles: PyTree
    #: Mask of the slots that have a particle: the first ones.
    mask: Array
    #: Number of particles, of all processes, that have not moved for want of room.
    deferred: Array
    #: Number of particles, of all processes, whose destination is not a rank, or not a
    #: neighbor. They stay.
    unreachable: Array


@dataclass(frozen=True)
class _Migration(PlanCall):
    """A call with its parameters: an eager one is a program of its own."""

    name: ClassVar[str] = "migrate"

    communicator: Communicator
    capacity: int
    neighbors: tuple[int, ...] | None

    def call_in_program(
        self, leaves: Sequence[Array], destination: Array, mask: Array
    ) -> list[list[Array] | Array]:
        """The fields of the result, with a list of leaves in place of a tree."""
        slots, size = mask.shape[0], self.communicator.size
        elsewhere = mask & (destination != self.communicator.rank_in_program())
        is_reached = self._is_reached(destination)
        # The particles that stay, then those for each process, and then empty slots.
        group = jnp.where(elsewhere & is_reached, 1 + destination, 0)
        order, starts = _sort(jnp.where(mask, group, 1 + size), 2 + size)
        sizes = jnp.diff(starts).astype(int)
        free, unreachable = self.capacity - mask.sum(), jnp.sum(elsewhere & ~is_reached)
        sendcounts, recvcounts, totals = self._agree(sizes[1:], free, unreachable)
        in_groups = jnp.insert(sendcounts, 0, 0)
        sent = _members(order, starts[1:-1], sendcounts, slots)
        staying = _members(order, starts[:-1] + in_groups, sizes - in_groups, self.capacity)

        received: Sequence[Array] = []
        if leaves:
            move = LeafRows(self.communicator, self.capacity)
            rows = [_rows_at(x, sent) for x in leaves]
            received = move.apply_to_leaves(rows, sendcounts, recvcounts)
        slot, staying_count = jnp.arange(self.capacity), mask.sum() - sendcounts.sum()
        count = staying_count + recvcounts.sum()
        is_new = slot >= staying_count
        arrived = jnp.where(is_new & (slot < count), slot - staying_count, self.capacity)

        def merge(x: Array, new: Array) -> Array:
            is_new_row = is_new.reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.where(is_new_row, _rows_at(new, arrived), _rows_at(x, staying))

        results = list(map(merge, leaves, received))
        return [results, slot < count, *totals]

    def _is_reached(self, destination: Array) -> Array:
        """Whether particles can be sent where they go."""
        size = self.communicator.size
        is_rank = (destination >= 0) & (destination < size)
        if self.neighbors is None:
            return is_rank
        is_neighbor = np.isin(np.arange(size), self.neighbors)
        return is_rank & jnp.asarray(is_neighbor)[destination]

    def _agree(self, wanted: Array, free: Array, unreachable: Array) -> State:
        """Numbers sent to and received from each process, and the totals of the result."""

        def sum_totals(granted: Array, incoming: Array) -> Array:
            is_too_much = incoming.sum() > free + granted.sum()
            totals = [is_too_much, wanted.sum() - granted.sum(), unreachable]
            stacked = jnp.stack([jnp.asarray(x, int) for x in totals])
            return AllReduce(self.communicator, SUM).apply(stacked)

        def withdraw(rounds: int, leaving_share: int) -> Callable[..., State]:
            def once(_: Array, counts: Counts) -> Counts:
                granted, incoming = counts
                room = free + leaving_share * granted.sum()
                from_lower_ranks = jnp.cumsum(incoming) - incoming
                incoming = jnp.clip(room - from_lower_ranks, 0, incoming)
                return self._swap(incoming), incoming

            def repeat(granted: Array, incoming: Array, _: Array) -> State:
                counts = jax.lax.fori_loop(0, rounds, once, (granted, incoming))
                return *counts, sum_totals(*counts)

            return repeat

        incoming = self._swap(wanted)
        state = wanted, incoming, sum_totals(wanted, incoming)
        for step in withdraw(ROUNDS, 1), withdraw(1, 0):
            is_too_much = state[-1][0] > 0
            state = jax.lax.cond(is_too_much, step, lambda *state: state, *state)
        granted, incoming, totals = state
        return granted, incoming, totals[1:]

    def _swap(self, counts: Array) -> Array:
        """The count that each process has for this one, from those for each."""
        if self.neighbors is None:
            return AllToAll(self.communicator).apply(counts)
        if not self.neighbors:
            return jnp.zeros_like(counts)
        count = len(self.neighbors)
        messages = Messages(self.neighbors, (MIGRATION,) * count, (1,) * count)
        sent = [counts[rank] for rank in self.neighbors]
        received = Exchange(self.communicator, messages, messages).bind(*sent, *sent)
        return jnp.zeros_like(counts).at[jnp.array(self.neighbors)].set(jnp.stack(received))


def _sort(groups: Array, count: int) -> tuple[Array, Array]:
    """The slots, sorted by group, and the first position of each of `count` groups."""
    slots = groups.shape[0]
    if count * slots > jnp.iinfo(groups.dtype).max:
        order = jnp.argsort(groups, stable=True)
        return order, jnp.searchsorted(groups[order], jnp.arange(count))
    # XLA takes an eighth of the time to sort one array of integers.
    pairs = jnp.sort(groups * slots + jnp.arange(slots))
    return pairs % max(slots, 1), jnp.searchsorted(pairs, slots * jnp.arange(count))


def _members(order: Array, starts: Array, counts: Array, rows: int) -> Array:
    """Slots of `counts` members of each group, from positions `starts` in the order on.

    They are followed by the number of slots, which is that of none.
    """
    ends = jnp.cumsum(counts)
    row = jnp.arange(rows)
    group = jnp.searchsorted(ends, row, side="right")
    position = row + (starts - ends + counts).at[group].get(mode="clip")
    slots = order.shape[0]
    return jnp.where(row < ends[-1], _rows_at(order, position), slots)


def _rows_at(x: Array, index: Array) -> Array:
    """Rows of an array, with zeros where an index is that of none."""
    if x.shape[0] == 0:  # JAX takes nothing from an empty axis
        x = jnp.pad(x, [(0, 1), *[(0, 0)] * (x.ndim - 1)])
    return x.at[index].get(mode="fill", fill_value=0)


@on_own_devices
def migrate(
    particles: PyTree,
    destination: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    capacity: Integer | None = None,
    neighbors: Sequence[Integer] | None = None,
    comm: Comm = None,
) -> Migrated:
    """Send particles to the processes that they belong to.

    Each process has slots for particles, of which some are filled. The result has the
    particles that have come to it and those that have stayed, in its first slots, so that
    it can be migrated again. No particle is lost: if a process has no room for all that
    come, the others stay where they are, and move in a later call. It takes those from
    lower ranks first.

    Arguments:
        particles: An array, or a tree of arrays of any types, with a row for each slot.
        destination: The rank that each particle belongs to, an array of integers with one
            for each slot. That of an empty slot is ignored. Particles whose destination is
            not a rank stay where they are.
        mask: Which slots are filled, an array of booleans (by default, all are).
        capacity (int): The number of slots of the result, not less than before (by default,
            as many). It need not be the same on all processes.
        neighbors (Sequence[int]): The ranks that this process sends to and receives from,
            if these are few: then it exchanges counts with these only. This process has to
            be one of their neighbors, too. Particles that belong elsewhere stay where they
            are.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A :class:`Migrated`, with the fields ``particles``, ``mask``, ``deferred`` and
        ``unreachable``.

    """
    communicator = handles.communicator(NAME, comm)
    tree = Tree("particles", particles)
    named_leaves = list(tree.jax_arrays(NAME))
    leaves = [leaf for _, leaf in named_leaves]
    destination = _by_slot("destination", destination, "integers")
    slots = destination.shape[0]
    for name, leaf in named_leaves:
        _check_slots(name, leaf, slots)
    mask = jnp.ones(slots, bool) if mask is None else _by_slot("mask", mask, "booleans")
    _check_slots("mask", mask, slots)
    capacity = slots if capacity is None else integer(NAME, "capacity", capacity)
    if capacity < slots:
        raise ValueError(
            f"{NAME} got {capacity} for argument `capacity`, expected {slots} or more: the "
            "number of slots that the particles have now"
        )
    ranks = None if neighbors is None else _ranks(neighbors, communicator)
    call = _Migration(communicator, capacity, ranks)
    leaves, *others = run_named(NAME, call, [leaves, destination.astype(int), mask])
    return Migrated(tree.with_leaves(leaves), *others)


def _by_slot(argument: str, value: ArrayLike, values: str) -> Array:
    """An argument that has to have such a value for each slot."""
    value = array(NAME, argument, value)
    x = jnp.asarray(value)
    kind = np.integer if values == "integers" else np.bool_
    if x.ndim != 1 or not jnp.issubdtype(x.dtype, kind):
        raise TypeError(
            f"{NAME} got an array of type {x.dtype} and shape {x.shape} for argument "
            f"`{argument}`, expected {values} with one axis"
        )
    if isinstance(value, np.ndarray) and value.dtype.itemsize > x.dtype.itemsize:
        # JAX has dropped the upper half of the bits. What needs it is no rank.
        x = jnp.where(value == value.astype(x.dtype), x, -1)
    return x


def _check_slots(name: str, x: Array, slots: int) -> None:
    if x.shape[:1] != (slots,):
        raise ValueError(
            f"{NAME} got an array of shape {x.shape} for argument `{name}`, expected "
            f"({slots}, ...), with a row for each of `destination`"
        )


def _ranks(neighbors: Unchecked, communicator: Communicator) -> tuple[int, ...]:
    if isinstance(neighbors, str) or not isinstance(neighbors, (Sequence, np.ndarray)):
        reject(NAME, "neighbors", "a sequence of ranks", neighbors)
    ranks = {integer(NAME, "neighbors", rank) for rank in neighbors}
    if not ranks <= set(range(communicator.size)):
        raise ValueError(
            f"{NAME} got {sorted(ranks)} for argument `neighbors`, expected ranks of the "
            f"communicator (0 to {communicator.size - 1})"
        )
    if communicator.is_on_mesh:
        raise NotImplementedError(
            f"{NAME} got `neighbors` in a jax.shard_map over several processes, where the "
            "program is the same on all ranks, expected none"
        )
    return tuple(sorted(ranks - {communicator.rank}))
