"""MPI operations on JAX arrays, inside jax.jit."""

from importlib.metadata import version as _version
from typing import Any as _Any

from ._internal.api import capitalised as _capitalised
from ._internal.api import default as _api
from ._internal.utils import has_cuda_support, has_sycl_support

allgather = _api.allgather
allgatherv = _api.allgatherv
allreduce = _api.allreduce
alltoall = _api.alltoall
alltoallv = _api.alltoallv
barrier = _api.barrier
bcast = _api.bcast
exscan = _api.exscan
gather = _api.gather
gatherv = _api.gatherv
recv = _api.recv
reduce = _api.reduce
reduce_scatter = _api.reduce_scatter
scan = _api.scan
scatter = _api.scatter
scatterv = _api.scatterv
send = _api.send
sendrecv = _api.sendrecv

# So that `import mpi4jax` is enough for `mpi4jax.notoken.allreduce`.
from . import experimental as experimental  # noqa: E402
from . import notoken as notoken  # noqa: E402

__all__ = [
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "exscan",
    "gather",
    "gatherv",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
]

__version__ = _version("mpi4jax")


def __getattr__(name: str) -> _Any:
    return _capitalised(name)
