"""Sharing of a node's cores between its processes, and the wait policy for it."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

from mpi4jax import _core, _launcher
from mpi4jax._node import XLA_THREADS, all_cpus, allowed_cpus
from mpi4jax._override import override

from ..environment import settings

#: Environment variables in which a user sets the number of OpenBLAS's threads.
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


class Cores(NamedTuple):
    """Load of a node: its number of processes, of threads in each process, and of CPUs."""

    processes: int
    threads: int
    cpus: int

    @property
    def are_enough(self) -> bool:
        """Whether there is a CPU for each process."""
        return self.processes <= self.cpus

    @property
    def are_shared(self) -> bool:
        """Whether a thread that polls takes a core from a thread that computes."""
        return self.processes > 1 and self.processes * self.threads > self.cpus

    @override
    def __str__(self) -> str:
        return f"{self.processes} ranks with {self.threads} threads on {self.cpus} CPUs"


def of_this_node(environ: Mapping[str, str] = os.environ) -> Cores:
    """Load of this node as the launcher, the affinity and XLA's settings describe it.

    This needs no communication.
    """
    return Cores(_launcher.processes_on_node(environ), _threads(environ), len(all_cpus()))


def _threads(environ: Mapping[str, str]) -> int:
    """Number of threads on which XLA computes in this process."""
    flag = re.findall(r"--xla_cpu_multi_thread_eigen=(\w+)", environ.get("XLA_FLAGS", ""))
    if flag and flag[-1].lower() in ("false", "0"):
        return 1
    counts = [environ.get(name, "") for name in XLA_THREADS]
    return next((int(count) for count in counts if count.isdigit()), len(allowed_cpus()))


#: Load of this node.
cores = of_this_node()

#: Description of how operations of this process wait, for `doctor`.
waits = "spin"


def set_up() -> None:
    """Set how waits behave: as `MPI4JAX_WAIT` says, or by whether ranks share cores."""
    global waits
    if settings.wait == "spin":
        return
    from mpi4py import MPI

    gives_way = settings.wait == "yield" or cores.are_shared
    can_give_way = _core.set_wait_policy(
        os.fspath(MPI.__file__), has_core=cores.are_enough, gives_way=gives_way
    )
    if gives_way:
        waits = "give way" if can_give_way else "spin, as this MPI never yields"
        _limit_blas(max(1, cores.cpus // cores.processes))


def _limit_blas(threads: int) -> None:
    """Limit the threads of the OpenBLAS in JAX's linear algebra, which is SciPy's.

    Threads of OpenBLAS poll while they wait for each other. With more threads than cores, a
    factorisation takes up to twenty times as long.
    """
    if threads >= len(allowed_cpus()) or any(map(os.environ.get, _BLAS_THREADS)):
        return
    # OpenBLAS reads this when it is loaded, which JAX does at the first use.
    os.environ[_BLAS_THREADS[0]] = str(threads)
    loaded = getattr(sys.modules.get("scipy.linalg.cython_blas"), "__file__", None)
    if loaded is None:
        return
    # Symbols of the libraries on which an extension module depends are found through it.
    set_threads = getattr(ctypes.CDLL(loaded), "scipy_openblas_set_num_threads", None)
    if set_threads is not None:
        set_threads(threads)
