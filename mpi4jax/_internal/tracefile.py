"""Reading the files that :mod:`.trace` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi4jax import _core

from .lines import Half, Halves

#: How the core writes a call: `Entry` in `rust/src/trace.rs`.
ENTRY = np.dtype(
    [
        ("begin", "u8"),
        ("end", "u8"),
        ("call_site", "i8"),
        ("sent", "i8"),
        ("received", "i8"),
        ("sequence", "u8"),
        ("in_flight", "u8"),
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
    in_flight: int
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
    #: A number that is the same in all of its processes, and no other communicator's.
    key: int


class Clock(NamedTuple):
    """A comparison of a process's clock with rank 0's, in nanoseconds."""

    at: int
    offset: int
    error: int


class Clocks:
    """The clock of a process, by how it compared with rank 0's."""

    def __init__(self, found: list[Clock], boot: str | None, root_boot: str | None) -> None:
        self.found = found
        #: Whether the process reads the same clock, which is more exact than to compare.
        self.is_shared = (
            boot is not None
            and boot == root_boot
            # A container may have a clock of its own.
            and all(abs(clock.offset) <= clock.error for clock in found)
        )

    @property
    def drift(self) -> float | None:
        """By how much the clock is faster than rank 0's, if that is known."""
        if self.is_shared:
            return 0.0
        if len(self.found) < 2:
            return None
        first, last = self.found[0], self.found[-1]
        return (last.offset - first.offset) / max(last.at - first.at, 1)

    @property
    def error(self) -> int | None:
        """By how many nanoseconds the times may be wrong, if that is known."""
        if self.is_shared:
            return 0
        return max((clock.error for clock in self.found), default=None)

    def shifted(self, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Times of this clock as times of rank 0's."""
        times = times.astype(np.int64)
        if self.is_shared or not self.found:
            return times
        first = self.found[0]
        ahead = np.rint((times - first.at) * (self.drift or 0.0)).astype(np.int64)
        return times - first.offset - ahead


class Span(NamedTuple):
    """What a process did beside MPI."""

    kind: str
    name: str
    begin: int
    end: int


#: A communicator as the core describes it: its number, its name, its members as runs
#: (first, stride, count), and its lineage, if it is a copy
#: (`rust/src/recorder/identify.rs`).
Described = tuple[int, str, list[tuple[int, int, int]], "list[tuple[int, int]] | None"]


def identified(tables: Sequence[Sequence[Described]]) -> list[dict[int, Communicator]]:
    """The communicators of several processes, by their numbers in each of them."""
    keys = _core.identify_communicators([list(table) for table in tables])
    return [
        {
            number: Communicator(name, _ranks(members), key)
            for (number, name, members, _), key in zip(table, own, strict=True)
        }
        for table, own in zip(tables, keys, strict=True)
    ]


def _ranks(runs: Iterable[tuple[int, int, int]]) -> tuple[int, ...]:
    return tuple(
        first + stride * index for first, stride, count in runs for index in range(count)
    )


def is_between_neighbors(operation: str) -> bool:
    """Whether an operation is one whose messages go along the edges of a topology."""
    return operation.startswith("neighbor_")


def entries(path: Path) -> Iterator[np.ndarray[Any, Any]]:
    """The calls in a file of the core's, in arrays of :data:`ENTRY`."""
    with open(path, "rb") as file:
        header = file.read(len(MAGIC) + 8)
        if header != MAGIC + ENTRY.itemsize.to_bytes(8, "little"):
            raise TraceError(f"{path} is not a file of this version of mpi4jax")
        while data := file.read(_CHUNK * ENTRY.itemsize):
            whole = len(data) // ENTRY.itemsize
            yield np.frombuffer(data, ENTRY, whole).copy()


class Process:
    """What one process wrote."""

    def __init__(self, path: Path, root_boot: str | None = None) -> None:
        self._path = path
        self._sites: dict[int, str] = {}
        #: The messages of calls that have several.
        self._halves: dict[int, Halves] = {}
        self.described: list[Described] = []
        clocks: list[Clock] = []
        self.facts: dict[str, Any] = {}
        #: How many calls were lost, or None if the process did not get to its end.
        self.lost: int | None = None
        for line in self._lines():
            kind = line.pop("kind")
            if kind == "process":
                self.facts = line
            elif kind == "site":
                self._sites[line["number"]] = line["line"]
                if "sent" in line:
                    self._halves[line["number"]] = Halves(
                        *(tuple(Half(*h) for h in line[way]) for way in Halves._fields)
                    )
            elif kind == "communicator":
                keys = ("number", "name", "members", "copies")
                self.described.append(tuple(map(line.__getitem__, keys)))
            elif kind == "clock":
                clocks.append(Clock(**line))
            elif kind == "end":
                self.lost = line["lost"]
        if not self.facts:
            raise TraceError(f"{path} has no beginning")
        #: What :func:`read` makes of them.
        self.communicators: dict[int, Communicator] = {}
        self.clocks = Clocks(clocks, self.facts["boot"], root_boot)
        self.rank: int = self.facts["rank"]
        self.operations: list[str] = self.facts["operations"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        with open(self._path) as file:
            for line in file:
                # A process that was killed has not finished its last one.
                if line.endswith("\n"):
                    yield json.loads(line)

    def line(self, call: Call) -> str:
        """The Python line of a call, or nothing."""
        return self._sites.get(call.call_site, "")

    def several(self, call: Call) -> Halves | None:
        """The messages of a call that may have several."""
        return self._halves.get(call.call_site)

    def halves(self, call: Call) -> Halves:
        """The messages of a call, but for those with nobody."""
        several = self.several(call)
        if several is not None:
            return Halves(*(tuple(h for h in way if self._is_real(h)) for way in several))
        sent = Half(call.dest, call.send_tag, self.size(call.sent_type, call.sent))
        size = self.size(call.received_type, call.received)
        received = Half(call.source, call.recv_tag, size)
        return Halves(
            *((half,) if self._is_real(half) else () for half in (sent, received))
        )

    def _is_real(self, half: Half) -> bool:
        return half.rank not in (NONE, self.facts["nobody"])

    def size(self, dtype: int, count: int) -> int:
        """The bytes of so many elements."""
        _, size = self.facts["dtypes"].get(str(dtype), ("?", 0))
        return int(count * size)

    def spans(self) -> Iterator[Span]:
        """What the process did beside MPI, with the times of rank 0's clock."""
        for line in self._lines():
            if line["kind"] in ("compile", "eager"):
                begin, end = self.clocks.shifted(np.array([line["begin"], line["end"]]))
                yield Span(line["kind"], line["name"], int(begin), int(end))

    @property
    def started(self) -> int:
        return int(self.clocks.shifted(np.array([self.facts["started"]]))[0])

    def calls(self, begin: float = -math.inf, end: float = math.inf) -> Iterator[Call]:
        """The calls, with the times of rank 0's clock, in the order of the file.

        With the messages from before `begin`, as each takes one from those that follow.
        """
        neighbors = [
            n for n, name in enumerate(self.operations) if is_between_neighbors(name)
        ]
        for chunk in self.chunks():
            is_message = (chunk["sequence"] == 0) | np.isin(chunk["operation"], neighbors)
            is_wanted = (chunk["begin"] >= begin) | is_message
            wanted = chunk[is_wanted & (chunk["begin"] < end)]
            yield from map(Call._make, wanted.tolist())

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """The same in arrays."""
        path = self._path.with_suffix(".calls")
        # Before its first call, a process may have been killed.
        for chunk in entries(path) if path.exists() else ():
            is_over = chunk["end"] != 0
            chunk["begin"] = self.clocks.shifted(chunk["begin"])
            chunk["end"] = np.where(is_over, self.clocks.shifted(chunk["end"]), 0)
            yield chunk


def read(folder: Path) -> list[Process]:
    """All processes of a run, by rank."""
    paths = {int(path.stem[5:]): path for path in folder.glob("rank-*.json")}
    if not paths:
        raise TraceError(f"{folder} has no trace: no file is called rank-0.json")
    if 0 not in paths:
        raise TraceError(f"{folder} lacks rank-0.json, whose clock is that of the others")
    boot = Process(paths[0]).facts["boot"]
    processes = [Process(paths[rank], boot) for rank in sorted(paths)]
    tables = identified([process.described for process in processes])
    for process, communicators in zip(processes, tables, strict=True):
        process.communicators = communicators
    return processes
