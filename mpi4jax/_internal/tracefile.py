"""Reading the files that :mod:`.trace` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: How the core writes a call: `Entry` in `rust/src/trace.rs`.
ENTRY = np.dtype(
    [
        ("begin", "u8"),
        ("end", "u8"),
        ("call_site", "i8"),
        ("sent", "i8"),
        ("received", "i8"),
        ("sequence", "u8"),
        ("communicator", "i4"),
        ("op", "i4"),
        ("root", "i4"),
        ("dest", "i4"),
        ("source", "i4"),
        ("send_tag", "i4"),
        ("recv_tag", "i4"),
        ("sent_type", "u1"),
        ("received_type", "u1"),
        ("operation", "u2"),
    ]
)
MAGIC = b"mpi4jax1"
#: Stands for what an operation does not have.
NONE = -(2**31)
#: So many calls are in memory at a time.
_CHUNK = 1 << 14


class TraceError(Exception):
    """A trace that can't be read."""


class Call(NamedTuple):
    """A call, with the times of rank 0's clock. The fields are those of :data:`ENTRY`."""

    begin: int
    end: int
    call_site: int
    sent: int
    received: int
    sequence: int
    communicator: int
    op: int
    root: int
    dest: int
    source: int
    send_tag: int
    recv_tag: int
    sent_type: int
    received_type: int
    operation: int


class Communicator(NamedTuple):
    """A communicator of a process."""

    name: str
    #: The ranks of its processes in COMM_WORLD.
    members: tuple[int, ...]
    #: What is the same for all of its processes, and for no other communicator.
    key: tuple[Any, ...]


class Clock(NamedTuple):
    """A comparison of a process's clock with rank 0's, in nanoseconds."""

    at: int
    offset: int
    error: int


class Span(NamedTuple):
    """What a process did beside MPI."""

    kind: str
    name: str
    begin: int
    end: int


#: The numbers of communicators that are the same in every process (`handles.py`).
_FIXED = range(3)


class Process:
    """What one process wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sites: dict[int, str] = {}
        self.communicators: dict[int, Communicator] = {}
        self.clocks: list[Clock] = []
        self.facts: dict[str, Any] = {}
        #: How many calls were lost, or None if the process did not get to its end.
        self.lost: int | None = None
        for line in self._lines():
            kind = line.pop("kind")
            if kind == "process":
                self.facts = line
            elif kind == "site":
                self._sites[line["number"]] = line["line"]
            elif kind == "communicator":
                self._add_communicator(**line)
            elif kind == "clock":
                self.clocks.append(Clock(**line))
            elif kind == "end":
                self.lost = line["lost"]
        if not self.facts:
            raise TraceError(f"{path} has no beginning")
        self.rank: int = self.facts["rank"]
        self.operations: list[str] = self.facts["operations"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        with open(self._path) as file:
            for line in file:
                # A process that was killed has not finished its last one.
                if line.endswith("\n"):
                    yield json.loads(line)

    def _add_communicator(self, number: int, name: str, members: list[int]) -> None:
        group = tuple(members)
        same = [c for n, c in self.communicators.items() if c.members == group and n > 2]
        # Processes may number them differently, but not those among themselves.
        place = number if number in _FIXED else len(_FIXED) + len(same)
        self.communicators[number] = Communicator(name, group, (group, place))

    def line(self, call: Call) -> str:
        """The Python line of a call, or nothing."""
        return self._sites.get(call.call_site, "")

    def spans(self) -> Iterator[Span]:
        """What the process did beside MPI, with the times of rank 0's clock."""
        for line in self._lines():
            if line["kind"] in ("compile", "eager"):
                begin, end = self._shifted(np.array([line["begin"], line["end"]]))
                yield Span(line["kind"], line["name"], int(begin), int(end))

    @property
    def started(self) -> int:
        return int(self._shifted(np.array([self.facts["started"]]))[0])

    def calls(self) -> Iterator[Call]:
        """The calls, with the times of rank 0's clock, in the order of the file."""
        for chunk in self.chunks():
            yield from map(Call._make, chunk.tolist())

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """The same in arrays of :data:`ENTRY`."""
        path = self._path.with_suffix(".calls")
        if not path.exists():
            return
        with open(path, "rb") as file:
            header = file.read(len(MAGIC) + 8)
            if header != MAGIC + ENTRY.itemsize.to_bytes(8, "little"):
                raise TraceError(f"{path} is not a file of this version of mpi4jax")
            while data := file.read(_CHUNK * ENTRY.itemsize):
                whole = len(data) // ENTRY.itemsize
                chunk = np.frombuffer(data, ENTRY, whole).copy()
                is_over = chunk["end"] != 0
                chunk["begin"] = self._shifted(chunk["begin"])
                chunk["end"] = np.where(is_over, self._shifted(chunk["end"]), 0)
                yield chunk

    def _shifted(self, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Times of this process's clock as times of rank 0's."""
        times = times.astype(np.int64)
        if not self.clocks or self.shares_clock:
            return times
        first, last = self.clocks[0], self.clocks[-1]
        duration = max(last.at - first.at, 1)
        drift = (last.offset - first.offset) / duration
        return times - first.offset - np.rint((times - first.at) * drift).astype(np.int64)

    #: Whether the process reads the same clock as rank 0.
    shares_clock: bool = False

    def compare(self, root: Process) -> None:
        """See whether the clock is rank 0's, which is more exact than to compare them."""
        boot = self.facts["boot"]
        self.shares_clock = (
            boot is not None
            and boot == root.facts["boot"]
            # A container may have a clock of its own.
            and all(abs(clock.offset) <= clock.error for clock in self.clocks)
        )

    @property
    def drift(self) -> float | None:
        """By how much the clock is faster than rank 0's, if that is known."""
        if self.shares_clock:
            return 0.0
        if len(self.clocks) < 2:
            return None
        first, last = self.clocks[0], self.clocks[-1]
        return (last.offset - first.offset) / max(last.at - first.at, 1)

    @property
    def clock_error(self) -> int | None:
        """By how many nanoseconds the times may be wrong, if that is known."""
        if self.shares_clock:
            return 0
        return max((clock.error for clock in self.clocks), default=None)


def read(folder: Path) -> list[Process]:
    """All processes of a run, by rank."""
    processes = sorted(map(Process, folder.glob("rank-*.json")), key=lambda p: p.rank)
    if not processes:
        raise TraceError(f"{folder} has no trace: no file is called rank-0.json")
    if processes[0].rank != 0:
        raise TraceError(f"{folder} lacks rank-0.json, whose clock is that of the others")
    for process in processes:
        process.compare(processes[0])
    return processes
