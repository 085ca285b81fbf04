"""Profiles: time and waiting by operation and line, during a part of a run.

The calls are written to a file as for a trace. At the end, each process reads its own
calls, and the processes tell each other when their calls began.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpi4jax import _core, _terminal

from ..mpi import binding, handles
from ..operations import _alone
from ..watch.meetings import meeting
from ..xla.flush import flush
from . import writer
from .reader import ENTRY, Array, array_sizes, envelopes_by_site, identify
from .report import Result, Row, text_of
from .waiting import wait_for_messages, wait_in_collectives

#: The file of calls of a recording, if no trace has one.
_path: Path | None = None


_RULE = "all ranks have to enter and leave a profile together."


class Recording:
    """A recording of the calls of all processes, from its creation to :meth:`finish`.

    All processes have to create and finish it together.
    """

    def __init__(self, is_first: bool = False) -> None:
        _alone.begin_recording()
        if not is_first:
            flush()
        comm = handles.default_comm()
        with meeting("the start of a profile", _RULE):
            self._begin_together(comm)

    def _begin_together(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        boot = writer.boot()
        root_boot: str | None = self._comm.bcast(boot)
        self._has_boot_of_root = boot is not None and boot == root_boot
        self._clock_comparisons = [self._compare_clocks()]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        global _path
        path = writer.path_of_calls() or _path
        try:
            with writer.agreement(self._comm, "a profile"):
                if path is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="mpi4jax-")
                    path = _path = Path(self._folder.name, "calls")
                    _core.start_trace(path, binding.operations, writer.CAPACITY)
        except RuntimeError:
            self.abandon()
            raise
        self._path = path
        self._lost_before = _lost_calls(_core.flush_trace())
        self._comm.Barrier()
        self._begin = time.monotonic_ns()

    def _compare_clocks(self) -> tuple[int, int, int]:
        offset, error = writer.compare_clocks(self._comm)
        return time.monotonic_ns(), offset, error

    def finish(self) -> Result:
        """End the recording, and return the profile of all processes."""
        flush()
        with meeting("the end of a profile", _RULE):
            return self._finish_together()

    def _finish_together(self) -> Result:
        elapsed = (time.monotonic_ns() - self._begin) * 1e-9
        comm = self._comm
        comm.Barrier()
        self._clock_comparisons.append(self._compare_clocks())
        summary = _core.flush_trace() if self._folder is None else self._stop()
        lost = _lost_calls(summary) - self._lost_before
        calls = self._read_calls()
        communicators = identify(comm.allgather(_core.communicators()))[comm.Get_rank()]
        waiting, traffic = wait_for_messages(calls, communicators, comm)
        waiting += wait_in_collectives(calls, communicators, comm)
        result = Result(
            elapsed=comm.allreduce(elapsed, MPI.MAX),
            rows=_rows(comm.allgather(list(_sums(calls, waiting)))),
            traffic=np.array(comm.allgather(traffic)),
            lost=comm.allreduce(lost),
        )
        comm.Free()
        return result

    def _read_calls(self) -> Array:
        """The finished calls of this process, with times of rank 0's clock."""
        calls = _core.read_calls(
            self._path, self._begin, self._clock_comparisons, self._has_boot_of_root
        )
        self._clean()
        return np.frombuffer(calls, ENTRY)

    def abandon(self) -> None:
        """End the recording without the other processes."""
        if self._folder is not None:
            self._stop()
        self._clean()

    def _stop(self) -> tuple[int, int] | None:
        global _path
        _path = None
        return _core.stop_trace()

    def _clean(self) -> None:
        _alone.end_recording()
        if self._folder is not None:
            self._folder.cleanup()


def _lost_calls(summary: tuple[int, int] | None) -> int:
    """Number of calls that could not be written to the file."""
    return 0 if summary is None else summary[1]


#: The calls of a process of one operation and line: both, and the sums of a row's columns.
Sums = tuple[str, str, list[float]]


def _sums(calls: Array, waiting: Array) -> Iterator[Sums]:
    """The sums over the calls of this process, by operation and line."""
    line_of = dict(_core.call_sites(0))
    kinds, kind_of = np.unique(calls[["operation", "call_site"]], return_inverse=True)
    columns = (
        np.ones(len(calls)),
        _bytes_of(calls),
        (calls["end"] - calls["begin"]) * 1e-9,
        waiting * 1e-9,
    )
    sums = [np.bincount(kind_of, column, len(kinds)) for column in columns]
    for (operation, site), *values in zip(kinds.tolist(), *sums, strict=True):
        yield binding.operations[operation], line_of.get(site, ""), list(map(float, values))


def _bytes_of(calls: Array) -> Array:
    """Number of bytes that each call sends or, if it sends none, receives."""
    sent, received = array_sizes(calls, "sent"), array_sizes(calls, "received")
    sizes = np.where(calls["sent_type"] != 0, sent, received)
    # The record of an exchange has its first array only.
    exchange = binding.operations.index("exchange")
    for site, envelopes in envelopes_by_site(calls):
        sent_size, received_size = (
            sum(envelope.size for envelope in way if envelope.rank != MPI.PROC_NULL)
            for way in envelopes
        )
        is_here = (calls["call_site"] == site) & (calls["operation"] == exchange)
        sizes[is_here] = sent_size or received_size
    return sizes


def _rows(sums_by_rank: list[list[Sums]]) -> tuple[Row, ...]:
    """The rows of a profile: the calls of all processes, by operation and line."""
    size = len(sums_by_rank)
    table: dict[tuple[str, str], Array] = defaultdict(lambda: np.zeros((4, size)))
    for rank, sums in enumerate(sums_by_rank):
        for operation, line, values in sums:
            table[operation, line][:, rank] += values
    rows = [
        Row(*key, int(calls.sum()), int(size.sum()), tuple(seconds), tuple(waiting))
        for key, (calls, size, seconds, waiting) in table.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-sum(row.seconds), row[:2])))


_recording: Recording | None = None


def start() -> None:
    """Profile the whole program. All processes have to take part."""
    global _recording
    if _recording is None and not writer.is_command():
        _recording = Recording(is_first=True)


def abandon() -> None:
    """End the profile of the program, if there is one, without the other processes."""
    global _recording
    if _recording is not None:
        recording, _recording = _recording, None
        recording.abandon()


def end() -> None:
    """Print the profile of the program, if there is one. All processes take part."""
    global _recording
    if _recording is not None:
        recording, _recording = _recording, None
        result = recording.finish()
        if MPI.COMM_WORLD.Get_rank() == 0:
            print(text_of(result, _terminal.of()), flush=True)
