"""Reading the calls that the core writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi4jax import _core

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

    def shifted(self, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Times of this clock as times of rank 0's."""
        times = times.astype(np.int64)
        if self.is_shared or not self.found:
            return times
        first = self.found[0]
        ahead = np.rint((times - first.at) * (self.drift or 0.0)).astype(np.int64)
        return times - first.offset - ahead


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
            raise ValueError(f"{path} is not a file of this version of mpi4jax")
        while data := file.read(_CHUNK * ENTRY.itemsize):
            whole = len(data) // ENTRY.itemsize
            yield np.frombuffer(data, ENTRY, whole).copy()
