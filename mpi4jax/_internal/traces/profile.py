"""What a part of a run spent on which operation, on which line, and waiting for whom.

The calls are written to a file as for a trace. In the end each process looks at its own,
and learns from the others when they began theirs.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ..arguments.dtypes import DATATYPES
from ..mpi import binding, handles
from ..watch.late_ranks import collective_section
from ..xla import call_sites
from ..xla.call_sites import Envelopes
from ..xla.flush import flush
from . import writer
from .matching import FROM_ROOT, TO_ROOT, first_messages
from .reader import (
    ENTRY,
    Clock,
    Clocks,
    Communicator,
    entries,
    identified,
    is_between_neighbors,
)
from .report import Result, Row, text_of

_SIZES = np.zeros(256, np.int64)
for _name, (_code, _) in DATATYPES.items():
    _SIZES[_code] = np.dtype(_name).itemsize

Array = np.ndarray[Any, Any]


#: The file that calls are written into for a recording, if they are not for a trace.
_path: Path | None = None


class Recording:
    """The calls of all processes from when this is made to :meth:`finish`.

    All processes have to take part in both.
    """

    def __init__(self, is_first: bool = False) -> None:
        self._operations = binding.operations
        if not is_first:
            flush()
        comm = handles.default_comm()
        with collective_section("profile"):
            self._begin_together(comm)

    def _begin_together(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self._boot = writer.boot()
        self._root_boot: str | None = self._comm.bcast(self._boot)
        self._clocks = [self._compare()]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        global _path
        path = writer.path_of_calls() or _path
        try:
            with writer.agreement(self._comm, "a profile"):
                if path is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="mpi4jax-")
                    path = _path = Path(self._folder.name, "calls")
                    _core.start_trace(path, self._operations, writer.CAPACITY)
        except RuntimeError:
            self.abandon()
            raise
        self._path = path
        self._lost_before = _missing(_core.flush_trace())
        self._comm.Barrier()
        self._begin = time.monotonic_ns()

    def _compare(self) -> Clock:
        offset, error = writer.compare_clocks(self._comm)
        return Clock(time.monotonic_ns(), offset, error)

    def finish(self) -> Result:
        """End it, and give what all processes did."""
        flush()
        with collective_section("profile"):
            return self._finish_together()

    def _finish_together(self) -> Result:
        elapsed = (time.monotonic_ns() - self._begin) * 1e-9
        comm = self._comm
        comm.Barrier()
        self._clocks.append(self._compare())
        written = _core.flush_trace() if self._folder is None else self._stop()
        lost = _missing(written) - self._lost_before
        clocks = Clocks(self._clocks, self._boot, self._root_boot)
        calls = [chunk[chunk["begin"] >= self._begin] for chunk in entries(self._path)]
        mine = np.concatenate([np.zeros(0, ENTRY), *calls])
        mine = mine[mine["end"] != 0]
        self._clean()
        for time_ in ("begin", "end"):
            mine[time_] = clocks.shifted(mine[time_])
        waiting, traffic = np.zeros(len(mine)), np.zeros(comm.Get_size(), np.int64)
        tables = comm.allgather(_core.communicators())
        communicators = identified(tables)[comm.Get_rank()]
        self._wait_for_collectives(mine, communicators, waiting)
        self._wait_for_messages(mine, communicators, waiting, traffic)
        result = Result(
            elapsed=comm.allreduce(elapsed, MPI.MAX),
            rows=_rows(comm.allgather(list(self._sums(mine, waiting)))),
            traffic=np.array(comm.allgather(traffic)),
            lost=comm.allreduce(lost),
        )
        comm.Free()
        return result

    def abandon(self) -> None:
        """End it without the other processes."""
        if self._folder is not None:
            self._stop()
        self._clean()

    def _stop(self) -> tuple[int, int] | None:
        global _path
        _path = None
        return _core.stop_trace()

    def _clean(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _sums(self, calls: Array, waiting: Array) -> Iterator[tuple[str, str, list[float]]]:
        """The operations and lines of this process: calls, bytes, seconds, waiting."""
        line_of = dict(_core.call_sites(0))
        kinds, kind_of = np.unique(calls[["operation", "call_site"]], return_inverse=True)
        numbers = (
            np.ones(len(calls)),
            self._bytes_of(calls),
            (calls["end"] - calls["begin"]) * 1e-9,
            waiting * 1e-9,
        )
        sums = [np.bincount(kind_of, number, len(kinds)) for number in numbers]
        for place, (operation, site) in enumerate(kinds.tolist()):
            values = [float(column[place]) for column in sums]
            yield self._operations[operation], line_of.get(site, ""), values

    def _bytes_of(self, calls: Array) -> Array:
        """What each call was given to send, or, where this is nothing, what it got."""
        sent, received = (_size(calls, way) for way in Envelopes._fields)
        sizes = np.where(calls["sent_type"] != 0, sent, received)
        # The record of an exchange has the first array only.
        exchange = self._operations.index("exchange")
        for site, envelopes in _several(calls):
            of_all = [
                sum(envelope.size for envelope in way if envelope.rank != MPI.PROC_NULL)
                for way in envelopes
            ]
            is_this = (calls["call_site"] == site) & (calls["operation"] == exchange)
            sizes[is_this] = of_all[0] or of_all[1]
        return sizes

    def _wait_for_collectives(
        self, calls: Array, communicators: dict[int, Communicator], waiting: Array
    ) -> None:
        """Fill in the nanoseconds that each collective call waited for others to begin."""
        world = self._comm
        used = set(np.unique(calls["communicator"][calls["sequence"] != 0]).tolist())
        mine = {c.key: number for number, c in communicators.items() if number in used}
        members = {c.key: c.members for c in communicators.values()}
        known = set[int]().union(*world.allgather(set(mine)))
        from_root, to_root = (
            [n for n, name in enumerate(self._operations) if name in names]
            for names in (FROM_ROOT, TO_ROOT)
        )
        neighbors = self._between_neighbors()
        # All in the same order, so that everybody is where its partners are.
        for key in sorted(known & members.keys()):
            group = world.Get_group().Incl(members[key])
            comm = world.Create_group(group)
            group.Free()
            number = mine.get(key, -1)
            places = np.flatnonzero(
                (calls["communicator"] == number) & (calls["sequence"] != 0)
            )
            # Somebody may have been traced for less long.
            places = places[: comm.allreduce(len(places), MPI.MIN)]
            these = calls[places]
            begin = these["begin"].astype(np.int64)
            last, root_began = np.empty_like(begin), np.empty_like(begin)
            comm.Allreduce(begin, last, MPI.MAX)
            is_root = these["root"] == comm.Get_rank()
            comm.Allreduce(np.where(is_root, begin, 0), root_began, MPI.MAX)
            needed = np.where(np.isin(these["operation"], from_root), root_began, last)
            is_free = np.isin(these["operation"], to_root) & ~is_root
            # Who waits for neighbors does so for their messages.
            is_free |= np.isin(these["operation"], neighbors)
            needed = np.where(is_free, begin, needed)
            duration = these["end"].astype(np.int64) - begin
            waiting[places] = np.clip(needed - begin, 0, duration)
            comm.Free()

    def _wait_for_messages(
        self,
        calls: Array,
        communicators: dict[int, Communicator],
        waiting: Array,
        traffic: Array,
    ) -> None:
        """The same for what receives messages. Also count the bytes to each process."""
        world, neighbors = self._comm, self._between_neighbors()
        begin = calls["begin"].astype(np.int64)
        duration = calls["end"].astype(np.int64) - begin
        sent: list[dict[Any, Array]] = [{} for _ in range(world.Get_size())]
        envelopes = _envelopes(calls, "sent", "dest", "send_tag", neighbors)
        for (key, receiver), these in _channels(envelopes, communicators):
            traffic[receiver] += these["size"].sum()
            sent[receiver][key] = np.stack([these["tag"], begin[these["call"]]])
        received = world.alltoall(sent)
        envelopes = _envelopes(calls, "received", "source", "recv_tag", neighbors)
        for (key, sender), these in _channels(envelopes, communicators):
            tags, began = received[sender].get(key, np.zeros((2, 0), np.int64))
            found = first_messages(tags, these["tag"])
            is_found = found >= 0
            place = these["call"][is_found]
            needed = began[found[is_found]]
            waited = np.clip(needed - begin[place], 0, duration[place])
            # Of several messages, the last one is waited for longest.
            np.maximum.at(waiting, place, waited)

    def _between_neighbors(self) -> list[int]:
        return [n for n, name in enumerate(self._operations) if is_between_neighbors(name)]


def _missing(written: tuple[int, int] | None) -> int:
    """How many calls are not in the file, as it could not be written."""
    return 0 if written is None else written[1]


def _size(calls: Array, way: str) -> Array:
    """The bytes of the array that each call sends, or receives."""
    sizes: Array = calls[way] * _SIZES[calls[f"{way}_type"]]
    return sizes


def _several(calls: Array) -> Iterator[tuple[int, Envelopes]]:
    """The messages of calls that may have several, by the calls' attribute."""
    for site in np.unique(calls["call_site"]).tolist():
        envelopes = call_sites.envelopes_of(site)
        if envelopes is not None:
            yield site, envelopes


#: A side of a message, with the place of its call.
_ENVELOPE = np.dtype(
    [
        ("call", "i8"),
        ("communicator", "i8"),
        # On a communicator of ours.
        ("is_between_neighbors", "?"),
        ("rank", "i8"),
        ("tag", "i8"),
        ("size", "i8"),
    ]
)


def _envelopes(calls: Array, way: str, peer: str, tag: str, neighbors: list[int]) -> Array:
    """Our sides of all messages that are sent, or received, in their order."""
    is_single = np.ones(len(calls), bool)
    parts: list[tuple[Array, Any, Any, Any]] = []
    for site, envelopes in _several(calls):
        (places,) = np.nonzero(calls["call_site"] == site)
        is_single[places] = False
        parts += ((places, *envelope) for envelope in getattr(envelopes, way))
    (places,) = np.nonzero(is_single)
    these = calls[places]
    parts.append((places, these[peer], these[tag], _size(these, way)))
    found = np.zeros(sum(len(places) for places, *_ in parts), _ENVELOPE)
    start = 0
    for places, *envelope in parts:
        part = found[start : start + len(places)]
        start += len(places)
        part["call"], part["communicator"] = places, calls["communicator"][places]
        part["is_between_neighbors"] = np.isin(calls["operation"][places], neighbors)
        part["rank"], part["tag"], part["size"] = envelope
    # A receive from anyone, and nobody, are negative.
    found = found[found["rank"] >= 0]
    return found[np.argsort(found["call"], kind="stable")]


def _channels(
    envelopes: Array, communicators: dict[int, Communicator]
) -> Iterator[tuple[tuple[Any, int], Array]]:
    """The messages with the same communicator and peer."""
    channels = envelopes[["communicator", "is_between_neighbors", "rank"]]
    for channel in np.unique(channels):
        number, is_between_neighbors, rank = channel.tolist()
        communicator = communicators.get(number)
        if communicator is not None:
            key = communicator.key, is_between_neighbors
            yield (key, communicator.members[rank]), envelopes[channels == channel]


def _rows(sums: list[list[tuple[str, str, list[float]]]]) -> tuple[Row, ...]:
    """What processes did, together."""
    size = len(sums)
    table: dict[tuple[str, str], Array] = defaultdict(lambda: np.zeros((4, size)))
    for rank, found in enumerate(sums):
        for operation, line, values in found:
            table[operation, line][:, rank] += values
    rows = [
        Row(*key, int(calls.sum()), int(size.sum()), tuple(seconds), tuple(waiting))
        for key, (calls, size, seconds, waiting) in table.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-sum(row.seconds), row[:2])))


_recording: Recording | None = None


def start() -> None:
    """Look at the whole program. All processes have to take part."""
    global _recording
    if _recording is None and not writer.is_command():
        _recording = Recording(is_first=True)


def abandon() -> None:
    """End without the other processes, if the program was looked at."""
    global _recording
    if _recording is not None:
        recording, _recording = _recording, None
        recording.abandon()


def end() -> None:
    """Print what it did, if it was looked at. All processes have to take part."""
    global _recording
    if _recording is not None:
        recording, _recording = _recording, None
        result = recording.finish()
        if MPI.COMM_WORLD.Get_rank() == 0:
            print(text_of(result), flush=True)
