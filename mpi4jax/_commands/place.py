"""The place of a rank on its node: threads, a GPU and huge pages.

Each is set where neither the user nor the launcher has set it, and before the program
imports anything.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping, Sequence

from mpi4jax import _launcher, _node

Environ = MutableMapping[str, str]

#: Variables with the number of threads of linear algebra. The first one is set.
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: The variable with the GPUs that a process sees, by default all of the node.
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
#: Variables that are there where a user or Slurm has chosen GPUs for each process.
_CHOOSES_GPUS = ("JAX_CUDA_VISIBLE_DEVICES", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")

#: The variable of the GNU C library, and its setting for huge pages.
TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def settle(environ: Environ = os.environ) -> list[str]:
    """Take this rank's part of its node, and return what was set, in words."""
    done = [_limit_threads(environ), _choose_gpu(environ), ask_for_huge_pages(environ)]
    return [text for text in done if text]


def _limit_threads(environ: Environ) -> str | None:
    """Limit the threads of ranks that may run on the same CPUs."""
    count = _launcher.processes_on_node(environ)
    if count < 2 or _node.allowed_cpus() != _node.all_cpus():
        return None  # alone, or bound
    cpus = min(len(_node.all_cpus()), _node.cpu_quota() or sys.maxsize)
    each = max(1, int(cpus / count))
    has_flag = "xla_cpu_multi_thread_eigen" in environ.get("XLA_FLAGS", "")
    has_set_xla = not has_flag and _set(_node.XLA_THREADS, each, environ)
    has_set_blas = _set(_BLAS_THREADS, each, environ)
    return f"{each} thread{'s' * (each > 1)}" if has_set_xla or has_set_blas else None


def _set(names: Sequence[str], number: int, environ: Environ) -> bool:
    """Set the first of these variables to a number, if none of them is set."""
    if any(map(environ.get, names)):
        return False
    environ[names[0]] = str(number)
    return True


def _choose_gpu(environ: Environ) -> str | None:
    """Give this process one of the GPUs that all processes of the node see."""
    count, rank = _launcher.processes_on_node(environ), _launcher.local_rank(environ)
    if count < 2 or rank is None or environ.get("JAX_PLATFORMS") == "cpu":
        return None
    if any(name in environ for name in _CHOOSES_GPUS):
        return None
    everything = ",".join(map(str, range(_node.nvidia_gpus())))
    visible = [gpu for gpu in environ.get(_VISIBLE_GPUS, everything).split(",") if gpu]
    if len(visible) < 2:
        return None
    environ[_VISIBLE_GPUS] = visible[rank % len(visible)]
    sharing = -(-count // len(visible))
    return "a GPU" + (f", which {sharing} ranks share" if sharing > 1 else "")


def ask_for_huge_pages(environ: Environ = os.environ) -> str | None:
    """Ask the C library for huge pages, for programs that are started with `environ`."""
    tunables = environ.get(TUNABLES, "")
    if _HUGE_PAGES in tunables or _node.huge_pages() != "madvise" or _glibc() < (2, 35):
        return None
    environ[TUNABLES] = ":".join(filter(None, [tunables, f"{_HUGE_PAGES}=1"]))
    return "huge pages"


def _glibc() -> tuple[int, ...]:
    """The version of the GNU C library, (0,) if there is another one."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        text = ""
    return tuple(map(int, re.findall(r"\d+", text))) or (0,)
