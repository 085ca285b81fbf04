"""Waiting time of calls: the time until the processes that a call needs began theirs.

Each process looks at its own calls, and the processes tell each other when their calls
began. The core has MPI's rules on which processes a call needs and which message a receive
gets (`rust/src/timeline/rules.rs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ..mpi import binding
from .reader import Array, CommunicatorInfo, messages_of

#: The communicators of this process, by their numbers.
Communicators = Mapping[int, CommunicatorInfo]
#: A channel: a communicator's key, and whether its messages are sent between neighbors in a
#: topology. Such messages do not match others.
Channel = tuple[int, bool]


def _has_pattern(calls: Array, pattern: str) -> Array:
    """Whether the operation of each call has this pattern."""
    operations = [
        index
        for index, name in enumerate(binding.operations)
        if _core.collective_pattern(name) == pattern
    ]
    return np.isin(calls["operation"], operations)


def wait_in_collectives(
    calls: Array, communicators: Communicators, world: MPI.Intracomm
) -> Array:
    """Nanoseconds that each collective call waited for other processes to begin it.

    The n-th call of a process on a communicator is the n-th one of all others there. All
    processes of `world` have to take part.
    """
    # Calls between neighbors wait for messages.
    is_collective = (calls["sequence"] != 0) & ~_has_pattern(calls, "neighborhood")
    used = set(calls["communicator"][is_collective].tolist())
    own = {
        info.key: comm_number
        for comm_number, info in communicators.items()
        if comm_number in used
    }
    members = {info.key: info.members for info in communicators.values()}
    used_by_any = set[int]().union(*world.allgather(set(own)))
    waiting = np.zeros(len(calls))
    # In one order, so that all processes are on one communicator at a time.
    for key in sorted(used_by_any & members.keys()):
        group = world.Get_group().Incl(members[key])
        comm = world.Create_group(group)
        group.Free()
        (indices,) = np.nonzero(is_collective & (calls["communicator"] == own.get(key, -1)))
        # Some processes may have been recorded for a shorter time.
        indices = indices[: comm.allreduce(len(indices), MPI.MIN)]
        waiting[indices] = _wait_on(comm, calls[indices])
        comm.Free()
    return waiting


def _wait_on(comm: MPI.Intracomm, calls: Array) -> Array:
    """Nanoseconds that each collective call waited, if all processes of `comm` made it."""
    begin = calls["begin"].astype(np.int64)
    is_root = calls["root"] == comm.Get_rank()
    last_begin, root_begin = np.empty_like(begin), np.empty_like(begin)
    comm.Allreduce(begin, last_begin, MPI.MAX)
    comm.Allreduce(np.where(is_root, begin, 0), root_begin, MPI.MAX)
    needed = np.where(_has_pattern(calls, "one to all"), root_begin, last_begin)
    is_sender = _has_pattern(calls, "all to one") & ~is_root
    needed = np.where(is_sender, begin, needed)
    return np.clip(needed - begin, 0, calls["end"].astype(np.int64) - begin)


def wait_for_messages(
    calls: Array, communicators: Communicators, world: MPI.Intracomm
) -> tuple[Array, Array]:
    """Nanoseconds that each call waited for its messages to be sent, and the traffic.

    The traffic is the number of bytes that this process sent to each process. All processes
    of `world` have to take part.
    """
    begin = calls["begin"].astype(np.int64)
    duration = calls["end"].astype(np.int64) - begin
    waiting, traffic = np.zeros(len(calls)), np.zeros(world.Get_size(), np.int64)
    outgoing: list[dict[Channel, Array]] = [{} for _ in range(world.Get_size())]
    for channel, receiver, sent in _by_channel(calls, "sent", communicators):
        traffic[receiver] += sent["size"].sum()
        outgoing[receiver][channel] = np.stack([sent["tag"], begin[sent["call"]]])
    incoming = world.alltoall(outgoing)
    for channel, sender, received in _by_channel(calls, "received", communicators):
        tags, sent_begin = incoming[sender].get(channel, np.zeros((2, 0), np.int64))
        matches = _core.match_messages(tags.tolist(), received["tag"].tolist())
        messages = np.array(matches, np.int64)
        is_matched = messages >= 0
        call = received["call"][is_matched]
        waited = sent_begin[messages[is_matched]] - begin[call]
        # A call with several messages waits for the last one longest.
        np.maximum.at(waiting, call, np.clip(waited, 0, duration[call]))
    return waiting, traffic


def _by_channel(
    calls: Array, way: str, communicators: Communicators
) -> Iterator[tuple[Channel, int, Array]]:
    """The messages on each channel, and the rank in COMM_WORLD of the other process."""
    messages = messages_of(calls, way)
    comm_numbers = calls["communicator"][messages["call"]]
    is_neighborhood = _has_pattern(calls, "neighborhood")[messages["call"]]
    columns = np.stack([comm_numbers, is_neighborhood, messages["rank"]])
    for column in np.unique(columns, axis=1).T:
        comm_number, is_between_neighbors, rank = column.tolist()
        info = communicators.get(comm_number)
        if info is not None:
            channel = info.key, bool(is_between_neighbors)
            on_channel = (columns == column[:, None]).all(axis=0)
            yield channel, info.members[rank], messages[on_channel]
