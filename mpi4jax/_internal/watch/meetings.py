"""Meetings: calls of mpi4py in which ranks wait for each other, reported to the core."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from mpi4py import MPI

from mpi4jax import _core

#: Seconds by which pauses grow while a rank waits for others, and the longest pause.
_PAUSE_GROWTH, _LONGEST_PAUSE = 1e-5, 1e-3


@contextlib.contextmanager
def meeting(name: str, rule: str, members: Sequence[int] | None = None) -> Iterator[None]:
    """Record a block in which this rank waits for others, as a collective call.

    Arguments:
        name: A description of the place, such as "the first call without `comm=`".
        rule: A sentence about which ranks have to come there.
        members: The ranks in COMM_WORLD that have to come (defaults to all).

    """
    everyone = range(MPI.COMM_WORLD.Get_size())
    call = _core.begin_meeting(name, rule, list(everyone if members is None else members))
    try:
        yield
    finally:
        _core.end_meeting(call)


def wait_for_all(comm: MPI.Intracomm) -> None:
    """Wait for all ranks with pauses, as others may still need this core for long."""
    barrier, pause = comm.Ibarrier(), 0.0
    while not barrier.Test():
        time.sleep(pause)
        pause = min(pause + _PAUSE_GROWTH, _LONGEST_PAUSE)
