"""Collective calls of mpi4py's, which the core does not see by itself."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterator

from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._terminal import WIDTH
from mpi4jax._text import wrap

from ..environment import settings
from ..xla.call_sites import describe_stack, frames_of


@contextlib.contextmanager
def collective_section(name: str) -> Iterator[None]:
    """Have the watchdog take a block for a collective call on the default communicator."""
    section = _core.begin_meeting(name)
    try:
        yield
    finally:
        _core.end_meeting(section)


class LateRankReport:
    """Report a block that waits for long in a collective call of mpi4py's.

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
        self._is_reported = False

    def __enter__(self) -> None:
        self._caller = sys._getframe(1)
        # The thread can run meanwhile, as mpi4py waits without the GIL.
        threading.Thread(target=self._watch, name="mpi4jax-late-ranks", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        limits = {settings.hang_report or math.inf: self._report}
        if settings.timeout is not None:
            # Ending reports first, if the two limits are one.
            limits[settings.timeout] = self._end
        for seconds in sorted(filter(math.isfinite, limits)):
            if self._is_over.wait(self._begin + seconds - time.monotonic()):
                return
            limits[seconds]()

    def _report(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            seconds = time.monotonic() - self._begin
            rank = f"  rank  {MPI.COMM_WORLD.Get_rank()}   "
            line = describe_stack(frames_of(self._caller))
            row = f"{rank}{self._doing}   {line}"
            if len(row) > WIDTH:
                row = f"{rank}{self._doing}\n{' ' * len(rank)}at {line}"
            _print_error(
                f"mpi4jax: 1 rank has been waiting for {seconds:.0f} s\n"
                f"{row}\n{wrap(self._rule, WIDTH)}\n"
            )

    def _end(self) -> None:
        self._report()
        can_abort = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        ended = "all ranks" if can_abort else "this rank"
        _print_error(
            f"MPI4JAX_TIMEOUT is over: ending {ended} with exit code {_core.DEADLOCK}\n"
        )
        # Launchers may lose what is written right before the end.
        time.sleep(0.2)
        if can_abort:
            MPI.COMM_WORLD.Abort(_core.DEADLOCK)
        # While another thread is in MPI, no function may call it at exit.
        os._exit(_core.DEADLOCK)


def _print_error(text: str) -> None:
    # At once, so that the lines of several ranks don't mix.
    sys.stderr.write(text)
    sys.stderr.flush()
