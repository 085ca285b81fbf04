"""What the watching thread of the core is told (rust/src/watch).

The thread looks at the calls of this process, asks the other ranks when one takes long, and
prints a report.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ..arguments.hashable import handle
from ..environment import settings
from ..xla.call_sites import described, frames_of
from .whereabouts import whereabouts


@functools.cache
def follow_copies() -> None:
    """Count the copies of COMM_WORLD, so that processes know which one each other means."""
    _core.follow_copies(handle(MPI.COMM_WORLD))


@functools.cache
def start() -> None:
    """Start to watch. MPI is initialised by now."""
    comm = MPI.COMM_WORLD
    follow_copies()
    _core.set_world(handle(comm))
    _core.start_watching(
        comm.Get_rank(),
        comm.Get_size(),
        handle(MPI.COMM_SELF),
        whereabouts,
        report_after=settings.hang_report or math.inf,
        timeout=settings.timeout,
        end_deadlocks=settings.on_deadlock == "abort" and settings.hang_report != 0,
    )


@contextlib.contextmanager
def meeting(name: str) -> Iterator[None]:
    """Have the core know that this rank waits for all others in a block.

    It then takes that for a collective call on the default communicator.
    """
    number = _core.begin_meeting(name)
    try:
        yield
    finally:
        _core.end_meeting(number)


class Meeting:
    """Reports a block that waits for long for all ranks, in a collective call of mpi4py's.

    The core's thread only sees our own calls, and ranks can't ask each other before they
    have a communicator for it.

    Arguments:
        doing: What this rank does, in words.
        rule: What all ranks have to do.

    """

    def __init__(self, doing: str, rule: str) -> None:
        self._doing = doing
        self._rule = rule
        self._begin = time.monotonic()
        self._is_over = threading.Event()
        self._is_told = False

    def __enter__(self) -> None:
        self._caller = sys._getframe(1)
        # It can look at the clock meanwhile, as mpi4py gives up Python's lock to wait.
        threading.Thread(target=self._watch, name="mpi4jax-meeting", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        limits = {settings.hang_report or math.inf: self._report}
        if settings.timeout is not None:
            # It reports by itself, if the two limits are one.
            limits[settings.timeout] = self._end
        for seconds in sorted(filter(math.isfinite, limits)):
            if self._is_over.wait(self._begin + seconds - time.monotonic()):
                return
            limits[seconds]()

    def _report(self) -> None:
        if not self._is_told:
            self._is_told = True
            seconds = time.monotonic() - self._begin
            _print_error(
                f"mpi4jax: 1 rank has been waiting for {seconds:.0f} s\n"
                f"  rank  {MPI.COMM_WORLD.Get_rank()}   {self._doing}   "
                f"{described(frames_of(self._caller))}\n"
                f"{self._rule}\n"
            )

    def _end(self) -> None:
        self._report()
        can_abort = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        who = "all ranks" if can_abort else "this rank"
        _print_error(
            f"MPI4JAX_TIMEOUT is over: ending {who} with exit code {_core.DEADLOCK}\n"
        )
        # Launchers may lose what is written right before the end.
        time.sleep(0.2)
        if can_abort:
            MPI.COMM_WORLD.Abort(_core.DEADLOCK)
        # While another thread is in MPI, no function can run that would do so at exit.
        os._exit(_core.DEADLOCK)


def _print_error(text: str) -> None:
    # At once, so that the lines of several ranks don't mix.
    sys.stderr.write(text)
    sys.stderr.flush()


@functools.cache
def connect() -> bool:
    """Have the ranks ask each other from now on. Says whether MPI allows it.

    All of them call this, as it makes a communicator for them to talk on.
    """
    with Meeting(
        "in mpi4jax.diagnostics.watch()",
        "all ranks of MPI.COMM_WORLD have to call it. What the others do is not known "
        "before they do.",
    ):
        return _connect()


#: What has to be set alike in all processes, and whether it is in this one.
_ALIKE = {
    "MPI4JAX_CHECK": settings.check,
    "MPI4JAX_PROFILE": settings.profile,
    "MPI4JAX_TRACE": settings.trace is not None,
}


def _connect() -> bool:
    start()
    world = MPI.COMM_WORLD
    flags = np.array(list(_ALIKE.values()))
    own = np.concatenate([[MPI.Query_thread()], flags, ~flags]).astype(np.int64)
    least = np.empty_like(own)
    world.Allreduce(own, least, MPI.MIN)
    thread_level, *in_all = least.tolist()
    for name, is_set, is_unset in zip(
        _ALIKE, in_all[: len(_ALIKE)], in_all[len(_ALIKE) :], strict=True
    ):
        if is_set == is_unset:
            raise RuntimeError(
                f"the environment variable {name} is set in some processes only, "
                "expected it in all of them or in none"
            )
    if thread_level < MPI.THREAD_MULTIPLE:
        return False
    hosts = world.gather(MPI.Get_processor_name()) or []
    comm = world.Dup()
    _core.connect_watchers(handle(comm), handle(MPI.BYTE), int(MPI.ANY_SOURCE), hosts)
    return True
