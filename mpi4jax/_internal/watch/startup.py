"""Starting the core's watching thread (rust/src/watch), and connecting those of all ranks.

The thread looks at the calls of this process, asks the other ranks when one takes long, and
prints a report.
"""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ..arguments.hashable import handle
from ..environment import settings
from ..xla.flush import flush
from .late_ranks import LateRankReport
from .whereabouts import whereabouts


@functools.cache
def follow() -> None:
    """Count the copies of COMM_WORLD, so that processes know which one each other means.

    Has operations fail once MPI is finalised, and in processes that are forked from this
    one. MPI is initialised by now.
    """
    _core.follow(handle(MPI.COMM_WORLD), handle(MPI.COMM_SELF))
    _check_thread_level()


def _check_thread_level() -> None:
    """Warn if MPI allows calls from the main thread only."""
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        name = "FUNNELED" if level == MPI.THREAD_FUNNELED else "SINGLE"
        warnings.warn(
            f"\nMPI was initialised with MPI_THREAD_{name}, but JAX calls it from threads "
            "of its own. That may\ncrash, hang or give wrong results. Ask for "
            "MPI_THREAD_MULTIPLE, which mpi4py does by default\nunless "
            "mpi4py.rc.thread_level says otherwise.",
            stacklevel=2,
        )


@functools.cache
def start() -> None:
    """Start the watching thread. MPI is initialised by now."""
    comm = MPI.COMM_WORLD
    follow()
    _core.set_world(handle(comm))
    _core.start_watching(
        comm.Get_rank(),
        comm.Get_size(),
        whereabouts,
        report_after=settings.hang_report or math.inf,
        timeout=settings.timeout,
        end_deadlocks=settings.on_deadlock == "abort" and settings.hang_report != 0,
    )


@functools.cache
def connect() -> bool:
    """Connect the watching threads of all ranks. Gives whether MPI allows it.

    All ranks call this, as it makes a communicator for their threads.
    """
    # Programs that were called before may use COMM_WORLD in other threads.
    flush()
    with LateRankReport(
        "in mpi4jax.diagnostics.watch()",
        "all ranks of MPI.COMM_WORLD have to call it. What the others do is not known "
        "before they do.",
    ):
        return _connect()


#: The variables that have to be set in all processes or in none, and whether they are here.
_COLLECTIVE_SETTINGS = {
    "MPI4JAX_CHECK": settings.check,
    "MPI4JAX_PROFILE": settings.profile,
    "MPI4JAX_TRACE": settings.trace is not None,
}


def _connect() -> bool:
    start()
    world = MPI.COMM_WORLD
    flags = np.array(list(_COLLECTIVE_SETTINGS.values()))
    # The minimum of a flag over all ranks is whether it is set in all of them, and that of
    # its opposite, whether it is set in none.
    own = np.concatenate([[MPI.Query_thread()], flags, ~flags]).astype(np.int64)
    least = np.empty_like(own)
    world.Allreduce(own, least, MPI.MIN)
    in_all, in_none = np.split(least[1:], 2)
    for name, is_set_in_all, is_set_in_none in zip(
        _COLLECTIVE_SETTINGS, in_all, in_none, strict=True
    ):
        if not is_set_in_all and not is_set_in_none:
            raise RuntimeError(
                f"the environment variable {name} is set in some processes only, "
                "expected it in all of them or in none"
            )
    if least[0] < MPI.THREAD_MULTIPLE:
        return False
    hosts = world.gather(MPI.Get_processor_name()) or []
    comm = world.Dup()
    _core.connect_watchers(
        handle(comm), comm.rank, comm.size, handle(MPI.BYTE), int(MPI.ANY_SOURCE), hosts
    )
    return True
