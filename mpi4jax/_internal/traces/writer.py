"""The trace of a run: two files for each process, in one folder.

`rank-N.calls` has all calls, as the core writes them: see `rust/src/trace.rs`.
`rank-N.json` has a line for each other fact: the meaning of the numbers in a call, the
times of JAX's compilation and Python's dispatch, and the comparisons of clocks.
`rust/src/timeline` reads both.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

import jax
import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from .. import versions
from ..arguments.dtypes import DATATYPES, OPERATORS
from ..arguments.types import PyTree
from ..mpi import binding, handles
from ..operations._eager import ArrayOrLeaves, EagerCall, EagerRun, wrap_eager_calls
from ..watch.meetings import meeting, wait_for_all
from ..xla import call_sites

#: Number of calls that may wait to be written before the next call has to wait.
CAPACITY = 1 << 14
#: Number of round trips of a message to compare two clocks. The fastest one counts.
_ROUNDS = 32
_SECOND = 10**9
#: Number of lines that are written together.
_MAX_LINES = 256

#: The durations that JAX announces, and names of its activities.
_WORK = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


class Lines:
    """A file of lines in JSON. If it can't be written, the trace ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        # Open until the process ends. Unbuffered, as Python would retry failed writes.
        self._file: FileIO | None = open(path, "wb", buffering=0)  # noqa: SIM115

    def add(self, facts: dict[str, object]) -> None:
        """Add a line, in JSON."""
        with self._lock:
            self._lines.append(json.dumps(facts).encode() + b"\n")
            if len(self._lines) >= _MAX_LINES:
                self._flush()

    def flush(self) -> None:
        """Write the lines that wait to be written."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        data, self._lines = b"".join(self._lines), []
        try:
            while data and self._file is not None:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._file = None
            _core.give_up_trace(f"{self._path}: {error.strerror}")


class Trace:
    """The files of this process, while they are written."""

    def __init__(self, folder: Path) -> None:
        world = MPI.COMM_WORLD
        rank, size = world.Get_rank(), world.Get_size()
        name = f"MPI4JAX_TRACE={folder}"
        comm = handles.default_comm(
            f"the start of its trace ({name})",
            "all ranks have to write a trace, or none.",
        )
        # Made here, as all processes have to take part in that.
        self._comm = comm.Dup()
        self.calls = folder / f"rank-{rank}.calls"
        self._sites = 0
        self._communicators: set[int] = set()
        self._is_open = True
        try:
            with agreement(self._comm, name):
                folder.mkdir(parents=True, exist_ok=True)
                self._lines = Lines(folder / f"rank-{rank}.json")
                _core.start_trace(self.calls, binding.operations, CAPACITY)
        except RuntimeError:
            _core.stop_trace()
            raise
        self._write(
            kind="process",
            rank=rank,
            size=size,
            run=self._comm.bcast(secrets.token_hex(8)),
            host=platform.node(),
            boot=boot(),
            started=time.monotonic_ns(),
            version=versions.VERSION,
            program=sys.argv,
            operations=binding.operations,
            operators=OPERATORS,
            dtypes={
                code: (name, np.dtype(name).itemsize)
                for name, (code, _) in DATATYPES.items()
            },
            proc_null=MPI.PROC_NULL,
        )
        self._compare_clocks()
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        wrap_eager_calls(self._time_calls)

    def _write(self, **facts: object) -> None:
        self._lines.add(facts)

    def _write_tables(self) -> None:
        """Write the sites and communicators that are new since this was done last."""
        for site, line in _core.call_sites(self._sites):
            self._sites += 1
            envelopes = call_sites.envelopes_of(site)
            messages = {} if envelopes is None else envelopes._asdict()
            self._write(kind="site", number=site, line=line, **messages)
        for comm_number, name, members, copies in _core.communicators():
            # Threads may register communicators in another order than their numbers'.
            if comm_number in self._communicators:
                continue
            self._communicators.add(comm_number)
            self._write(
                kind="communicator",
                number=comm_number,
                name=name,
                members=members,
                copies=copies,
            )
        # What happens next may end the process at once.
        self._lines.flush()

    def _on_duration(self, event: str, duration_secs: float, **facts: str | int) -> None:
        if self._is_open and event in _WORK:
            now = time.monotonic_ns()
            name = str(facts.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
            begin = now - int(duration_secs * _SECOND)
            self._span("compile", f"{_WORK[event]} {name}".strip(), begin, now)
            self._write_tables()

    def _time_calls(self, run: EagerRun) -> EagerRun:
        def timed(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
            begin = time.monotonic_ns()
            try:
                return run(call, operands)
            finally:
                if self._is_open:
                    self._span("eager", call.name, begin, time.monotonic_ns())

        return timed

    def _span(self, kind: str, name: str, begin: int, end: int) -> None:
        self._write(kind=kind, name=name, begin=begin, end=end)

    def _compare_clocks(self) -> None:
        offset, error = compare_clocks(self._comm)
        self._write(kind="clock", at=time.monotonic_ns(), offset=offset, error=error)

    def end(self, is_alone: bool) -> None:
        """Finish the files. All processes have to take part, unless this one is alone."""
        if not self._is_open:
            return
        self._is_open = False
        summary = _core.stop_trace()
        self._write_tables()
        if not is_alone:
            with meeting("the end of its trace", "all ranks end it together."):
                wait_for_all(self._comm)
                self._compare_clocks()
            self._comm.Free()
        count, lost = summary or (0, 0)
        self._write(kind="end", at=time.monotonic_ns(), calls=count, lost=lost)
        self._lines.flush()


@contextlib.contextmanager
def agreement(comm: MPI.Intracomm, name: str) -> Iterator[None]:
    """Raise an error on all ranks if one of them can't write its files in the block."""
    problem = None
    try:
        yield
    except OSError as error:
        problem = str(error)
    problems = comm.allgather(problem)
    rank = next((rank for rank, problem in enumerate(problems) if problem), None)
    if rank is not None:
        raise RuntimeError(f"{name}: rank {rank} can't write it: {problems[rank]}")


def boot() -> str | None:
    """The boot id of the system, which is equal for processes that read the same clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def compare_clocks(comm: MPI.Intracomm) -> tuple[int, int]:
    """Nanoseconds by which this process's clock is ahead of rank 0's, and their error.

    A message goes from rank 0 to each other rank and back. The other rank reads its clock
    between two readings of rank 0's, and is compared with the middle of these. The error is
    at most half of the time between them.
    """
    clock, comparison = np.zeros(1, np.int64), np.zeros(2, np.int64)
    if comm.Get_rank() != 0:
        for _ in range(_ROUNDS):
            comm.Recv(clock, 0)
            clock[0] = time.monotonic_ns()
            comm.Send(clock, 0)
        comm.Recv(comparison, 0)
        offset, error = comparison.tolist()
        return offset, error
    for other in range(1, comm.Get_size()):
        comparison[1] = np.iinfo(np.int64).max
        for _ in range(_ROUNDS):
            begin = time.monotonic_ns()
            comm.Send(clock, other)
            comm.Recv(clock, other)
            end = time.monotonic_ns()
            error = (end - begin + 1) // 2
            if error < comparison[1]:
                comparison[:] = clock[0] - (begin + end) // 2, error
        comm.Send(comparison, other)
    return 0, 0


_trace: Trace | None = None


def path_of_calls() -> Path | None:
    """The file of calls of the trace, if there is one."""
    return None if _trace is None else _trace.calls


def is_command() -> bool:
    """Whether this is a command of `python -m mpi4jax`, which is not to be recorded.

    The program of `run` is.
    """
    pairs = list(itertools.pairwise(sys.orig_argv))
    if ("-m", "mpi4jax") not in pairs:
        return False
    return sys.orig_argv[pairs.index(("-m", "mpi4jax")) + 2 :][:1] != ["run"]


def start(folder: str) -> None:
    """Write all calls from now on. All processes have to take part."""
    global _trace
    if _trace is None and not is_command():
        _trace = Trace(Path(folder))


def end(is_alone: bool) -> None:
    """Finish the files of the trace, if there are any. A failed process does so alone."""
    if _trace is not None:
        _trace.end(is_alone)
