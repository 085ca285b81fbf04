"""Start of the core's watching thread (rust/src/watch).

The thread observes the calls of this process, asks the other ranks if a call takes long,
and prints a report.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings

import numpy as np
from mpi4py import MPI

from mpi4jax import _core, _mpi, _terminal
from mpi4jax._launcher import processes_on_node, why_alone

from ..arguments.hashable import handle
from ..environment import settings
from .whereabouts import whereabouts


@functools.cache
def _why_alone() -> str | None:
    is_spawned = MPI.Comm.Get_parent() != MPI.COMM_NULL
    return None if is_spawned else why_alone(MPI)


@functools.cache
def _tell_of_missing_mpi() -> None:
    if _mpi.is_missing(MPI.Get_library_version()):
        text = f"mpi4jax: {_mpi.MISSING}. MPI4JAX_ALONE=1 turns off this line"
        _terminal.tell(text, sys.stderr)


def refuse_alone() -> None:
    """Raise an error where a launcher started several processes that are alone in MPI."""
    if settings.alone:
        return
    _tell_of_missing_mpi()
    if why := _why_alone():
        raise RuntimeError(
            f"{why}. MPI4JAX_ALONE=1 allows it, if each process is to work for itself"
        ) from None


@functools.cache
def start() -> None:
    """Start the watching thread, and follow the state of MPI, which is initialised.

    From then on, the core counts the copies of COMM_WORLD, so that processes can tell each
    other which copy they mean, and operations fail once MPI is finalised and in forked
    processes. This is done as soon as possible: a process may fail before its first call.
    """
    comm = MPI.COMM_WORLD
    _core.follow(handle(comm), handle(MPI.COMM_SELF))
    _check_thread_level()
    _core.set_world(handle(comm))
    _core.start_watching(
        comm.Get_rank(),
        comm.Get_size(),
        MPI.Get_processor_name(),
        whereabouts,
        # Laptops ask their users before a program listens to other machines.
        all_hosts=sys.platform == "linux" and processes_on_node() < comm.Get_size(),
        names=_names(),
        has_threads=MPI.Query_thread() == MPI.THREAD_MULTIPLE,
        compares_traffic=settings.check,
        report_after=settings.hang_report or math.inf,
        timeout=settings.timeout,
        end_deadlocks=settings.on_deadlock == "abort" and settings.hang_report != 0,
    )


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


def _names() -> tuple[int, int, int, int] | str:
    """The handles for calls of MPI's name service, or the reason why it can't be called."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "MPI was not initialised with MPI_THREAD_MULTIPLE"
    if MPI.Comm.Get_parent() != MPI.COMM_NULL:
        # The launcher may have the same names for other processes.
        return "the processes were started by MPI_Comm_spawn"
    handles = MPI.COMM_WORLD, MPI.COMM_SELF, MPI.INFO_NULL, MPI.ERRORS_RETURN
    world, comm_self, info, errors_return = map(handle, handles)
    return world, comm_self, info, errors_return


#: Variables to be set in all processes or in none, and whether they are set in this one.
_COLLECTIVE_SETTINGS = {
    "MPI4JAX_CHECK": settings.check,
    "MPI4JAX_PROFILE": settings.profile,
    "MPI4JAX_TRACE": settings.trace is not None,
}


@functools.cache
def agree() -> None:
    """Compare the settings of all ranks, and exchange mailbox addresses if necessary.

    All ranks of COMM_WORLD call this.
    """
    world = MPI.COMM_WORLD
    is_isolated = _core.isolation() is not None
    flags = np.array([*_COLLECTIVE_SETTINGS.values(), not is_isolated])
    # The minimum of a flag over all ranks says whether it is set on all of them. The
    # minimum of its negation says whether it is set on none.
    own = np.concatenate([flags, ~flags]).astype(np.int64)
    least = np.empty_like(own)
    world.Allreduce(own, least, MPI.MIN)
    in_all, in_none = np.split(least, 2)
    for name, is_set_in_all, is_set_in_none in zip(
        _COLLECTIVE_SETTINGS, in_all, in_none, strict=False
    ):
        if not is_set_in_all and not is_set_in_none:
            raise RuntimeError(
                f"the environment variable {name} is set in some processes only, "
                "expected it in all of them or in none"
            )
    if not in_all[-1]:
        # Some rank has no directory of the launcher's for mailboxes.
        addresses = world.allgather(_core.mailbox_address())
        if None not in addresses:
            _core.set_mailbox_addresses(addresses)
