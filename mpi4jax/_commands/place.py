"""The place of a rank on its node: cores, threads, a GPU and huge pages.

Each is set where neither the user nor the launcher has set it, and before the program
imports anything.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, MutableMapping, Sequence
from contextlib import suppress

from mpi4jax import _launcher, _node

Environ = MutableMapping[str, str]

#: Variables with the number of XLA's threads, and of the threads of linear algebra.
_XLA_THREADS = ("PJRT_NPROC", "NPROC")
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Variables in which a user or a launcher chooses GPUs.
_VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "JAX_CUDA_VISIBLE_DEVICES")

#: The variable of the GNU C library, and its setting for huge pages.
TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def settle(environ: Environ = os.environ) -> list[str]:
    """Take this rank's part of its node, and return what was set, in words."""
    done = [_take_cores(environ), _choose_gpu(environ), ask_for_huge_pages(environ)]
    return [text for text in done if text]


def _take_cores(environ: Environ) -> str | None:
    """Bind this process to cores of its own, or limit its threads where there are none."""
    count, rank = _launcher.processes_on_node(environ), _launcher.local_rank(environ)
    cpus = _node.all_cpus()
    if count < 2 or rank is None or _node.allowed_cpus() != cpus:
        return None
    own = own_cores(_node.cores(cpus), rank, count, _node.cpu_quota())
    if own and _bind([cpu for core in own for cpu in core]):
        return f"{len(own)} core(s) of its own"
    return _limit_threads(max(1, len(own)), environ)


def own_cores(
    cores: Sequence[Sequence[int]], rank: int, count: int, quota: float | None = None
) -> Sequence[Sequence[int]]:
    """The part of the node's cores for one of `count` ranks, empty if there are too few."""
    each = int(min(len(cores), quota or len(cores))) // count
    return cores[rank * each : (rank + 1) * each]


def _bind(cpus: Collection[int]) -> bool:
    """Bind this process to CPUs, unless another run on this node has one of them."""
    if sys.platform != "linux":
        return False
    found = [_node.claim(f"CPU {cpu}") for cpu in cpus]
    claims = [claim for claim in found if claim is not None]
    with suppress(OSError):
        if len(claims) == len(cpus):
            os.sched_setaffinity(0, cpus)
            for claim in claims:
                # For a new program of this process.
                os.set_inheritable(claim, True)
            return True
    for claim in claims:
        os.close(claim)
    return False


def _limit_threads(count: int, environ: Environ) -> str | None:
    eigen = "xla_cpu_multi_thread_eigen" in environ.get("XLA_FLAGS", "")
    if eigen or any(map(environ.get, (*_XLA_THREADS, *_BLAS_THREADS))):
        return None
    environ[_XLA_THREADS[0]] = environ[_BLAS_THREADS[0]] = str(count)
    return f"{count} thread(s)"


def _choose_gpu(environ: Environ) -> str | None:
    """Give this process one of several GPUs."""
    count, rank = _launcher.processes_on_node(environ), _launcher.local_rank(environ)
    gpus = _node.nvidia_gpus()
    if count < 2 or rank is None or gpus < 2 or environ.get("JAX_PLATFORMS") == "cpu":
        return None
    if any(name in environ for name in _VISIBLE_GPUS):
        return None
    environ[_VISIBLE_GPUS[0]] = str(rank % gpus)
    shared = "" if count <= gpus else f", which {-(-count // gpus)} ranks share"
    return f"a GPU by its rank on the node{shared}"


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
