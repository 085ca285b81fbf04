"""Meetings: calls of mpi4py in which ranks wait for each other, reported to the core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mpi4py import MPI

from mpi4jax import _core


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
