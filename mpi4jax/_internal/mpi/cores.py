"""Whether the processes of a node share its cores, and what is done about it."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mpi4jax import _core, _launcher

from ..environment import settings

#: The variables that say how many threads XLA makes, in place of the number of cores.
XLA_THREADS = ("PJRT_NPROC", "NPROC")

#: The variables by which a user chooses how many threads OpenBLAS makes.
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


class Cores(NamedTuple):
    """Who wants to compute on a node: `threads` for each of its processes, on its CPUs."""

    processes: int
    threads: int
    cpus: int

    @property
    def are_enough(self) -> bool:
        """Whether there is one for each process."""
        return self.processes <= self.cpus

    @property
    def are_shared(self) -> bool:
        """Whether a thread that polls takes its core from one that computes."""
        return self.processes > 1 and self.processes * self.threads > self.cpus

    def __str__(self) -> str:
        return f"{self.processes} ranks with {self.threads} threads on {self.cpus} CPUs"


def allowed() -> int:
    """How many cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def of_this_node(environ: Mapping[str, str] = os.environ) -> Cores:
    """What the launcher, the affinity and XLA's settings say, without communication."""
    return Cores(_launcher.processes_on_node(environ), _threads(environ), _cpus())


def _threads(environ: Mapping[str, str]) -> int:
    """How many threads XLA computes with in this process."""
    flag = re.findall(r"--xla_cpu_multi_thread_eigen=(\w+)", environ.get("XLA_FLAGS", ""))
    if flag and flag[-1].lower() in ("false", "0"):
        return 1
    counts = [environ.get(name, "") for name in XLA_THREADS]
    return next((int(count) for count in counts if count.isdigit()), allowed())


def _cpus(
    groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """How many CPUs the processes of this node may run on together."""
    count = os.cpu_count() or 1
    try:
        path = own.read_text().partition("::")[2].strip()
        allowed_here = (groups / path.lstrip("/") / "cpuset.cpus.effective").read_text()
    except OSError:
        return count  # no container and no batch system, or version 1 of control groups
    ranges = re.findall(r"(\d+)(?:-(\d+))?", allowed_here)
    return sum(int(end or begin) - int(begin) + 1 for begin, end in ranges) or count


#: How the ranks of this node share its cores.
cores = of_this_node()

#: How the operations of this process wait, for `doctor`.
waits = "spin"


def set_up() -> None:
    """Have waits poll, or give way where ranks share cores, or as `MPI4JAX_WAIT` says."""
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
    """Have the OpenBLAS of JAX's linear algebra, which is SciPy's, make fewer threads.

    Its threads wait for each other by polling. Where they are more than cores, a
    factorisation takes up to twenty times as long.
    """
    if threads >= allowed() or any(map(os.environ.get, _BLAS_THREADS)):
        return
    # Read when the library is loaded, which JAX does when it needs it first.
    os.environ[_BLAS_THREADS[0]] = str(threads)
    loaded = getattr(sys.modules.get("scipy.linalg.cython_blas"), "__file__", None)
    if loaded is None:
        return
    # The symbols of the libraries that an extension module depends on are found in it.
    set_threads = getattr(ctypes.CDLL(loaded), "scipy_openblas_set_num_threads", None)
    if set_threads is not None:
        set_threads(threads)
