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

from . import bridge, handles, trace
from .dtypes import DATATYPES
from .flush import flush
from .matching import FROM_ROOT, TO_ROOT, first_messages
from .profile_report import Result, Row, text_of
from .tracefile import ENTRY, NONE, Clock, Clocks, Communicator, communicator_keys, entries

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
        self._operations = bridge.operations
        if not is_first:
            flush()
        self._comm = handles.get_default_comm().Dup()
        self._boot = trace.boot()
        self._root_boot: str | None = self._comm.bcast(self._boot)
        self._clocks = [self._compare()]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        global _path
        path = trace.path_of_calls() or _path
        if path is None:
            self._folder = tempfile.TemporaryDirectory(prefix="mpi4jax-")
            path = _path = Path(self._folder.name, "calls")
            _core.start_trace(path, self._operations, trace.CAPACITY)
        self._path = path
        self._comm.Barrier()
        self._begin = time.monotonic_ns()

    def _compare(self) -> Clock:
        offset, error = trace.compare_clocks(self._comm)
        return Clock(time.monotonic_ns(), offset, error)

    def finish(self) -> Result:
        """End it, and give what all processes did."""
        flush()
        elapsed = (time.monotonic_ns() - self._begin) * 1e-9
        comm, lost = self._comm, 0
        comm.Barrier()
        self._clocks.append(self._compare())
        if self._folder is None:
            _core.flush_trace()
        else:
            _, lost = self._stop()
        clocks = Clocks(self._clocks, self._boot, self._root_boot)
        calls = [chunk[chunk["begin"] >= self._begin] for chunk in entries(self._path)]
        mine = np.concatenate([np.zeros(0, ENTRY), *calls])
        mine = mine[mine["end"] != 0]
        self._clean()
        for time_ in ("begin", "end"):
            mine[time_] = clocks.shifted(mine[time_])
        waiting, traffic = np.zeros(len(mine)), np.zeros(comm.Get_size(), np.int64)
        communicators = communicator_keys(_core.communicators())
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

    def _stop(self) -> tuple[int, int]:
        global _path
        _path = None
        return _core.stop_trace() or (0, 1)

    def _clean(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _sums(self, calls: Array, waiting: Array) -> Iterator[tuple[str, str, list[float]]]:
        """The operations and lines of this process: calls, bytes, seconds, waiting."""
        lines = dict(_core.call_sites(0))
        kinds, kind_of = np.unique(calls[["operation", "call_site"]], return_inverse=True)
        sent, received = (
            calls[f"{name}"] * _SIZES[calls[f"{name}_type"]]
            for name in ("sent", "received")
        )
        numbers = (
            np.ones(len(calls)),
            np.where(calls["sent_type"] != 0, sent, received),
            (calls["end"] - calls["begin"]) * 1e-9,
            waiting * 1e-9,
        )
        sums = [np.bincount(kind_of, number, len(kinds)) for number in numbers]
        for place, (operation, site) in enumerate(kinds.tolist()):
            values = [float(column[place]) for column in sums]
            yield self._operations[operation], lines.get(site, ""), values

    def _wait_for_collectives(
        self, calls: Array, communicators: dict[int, Communicator], waiting: Array
    ) -> None:
        """Fill in the nanoseconds that each collective call waited for others to begin."""
        world = self._comm
        used = set(np.unique(calls["communicator"][calls["sequence"] != 0]).tolist())
        mine = {c.key: number for number, c in communicators.items() if number in used}
        known = set[tuple[Any, ...]]().union(*world.allgather(set(mine)))
        from_root, to_root = (
            [n for n, name in enumerate(self._operations) if name in names]
            for names in (FROM_ROOT, TO_ROOT)
        )
        # All in the same order, so that everybody is where its partners are.
        for key in sorted(key for key in known if world.Get_rank() in key[0]):
            group = world.Get_group().Incl(key[0])
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
        world = self._comm
        sent: list[dict[Any, Array]] = [{} for _ in range(world.Get_size())]
        for key, place in _channels(calls, communicators, "dest"):
            these = calls[place]
            receiver = key[1]
            traffic[receiver] += (these["sent"] * _SIZES[these["sent_type"]]).sum()
            sent[receiver][key[0]] = np.stack(
                [these["send_tag"].astype(np.int64), these["begin"].astype(np.int64)]
            )
        received = world.alltoall(sent)
        for (key, sender), place in _channels(calls, communicators, "source"):
            tags, began = received[sender].get(key, np.zeros((2, 0), np.int64))
            these = calls[place]
            found = first_messages(tags, these["recv_tag"])
            is_found = found >= 0
            needed = began[found[is_found]]
            begin = these["begin"][is_found].astype(np.int64)
            duration = these["end"][is_found].astype(np.int64) - begin
            waiting[place[is_found]] = np.clip(needed - begin, 0, duration)


def _channels(
    calls: Array, communicators: dict[int, Communicator], peer: str
) -> Iterator[tuple[tuple[Any, int], Array]]:
    """The places of calls with the same communicator and peer, which has a rank."""
    pairs = calls[["communicator", peer]]
    # A receive from anyone, and nobody, are negative.
    for pair in np.unique(pairs[(calls[peer] != NONE) & (calls[peer] >= 0)]):
        communicator = communicators.get(int(pair["communicator"]))
        if communicator is not None:
            other = communicator.members[pair[peer]]
            yield (communicator.key, other), np.flatnonzero(pairs == pair)


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
    if _recording is None and not trace.is_command():
        _recording = Recording(is_first=True)


def end() -> None:
    """Print what it did, if it was looked at. All processes have to take part."""
    global _recording
    if _recording is not None:
        recording, _recording = _recording, None
        result = recording.finish()
        if MPI.COMM_WORLD.Get_rank() == 0:
            print(text_of(result), flush=True)
