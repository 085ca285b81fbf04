"""MPI operations on JAX arrays, inside jax.jit."""

from importlib.metadata import version as _version
from typing import Any as _Any

from ._src.api import capitalised as _capitalised
from ._src.api import default as _api
from ._src.utils import has_cuda_support, has_sycl_support

allgather = _api.allgather
allreduce = _api.allreduce
alltoall = _api.alltoall
barrier = _api.barrier
bcast = _api.bcast
gather = _api.gather
recv = _api.recv
reduce = _api.reduce
scan = _api.scan
scatter = _api.scatter
send = _api.send
sendrecv = _api.sendrecv

# So that `import mpi4jax` is enough for `mpi4jax.notoken.allreduce`.
from . import experimental as experimental  # noqa: E402
from . import notoken as notoken  # noqa: E402

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]

__version__ = _version("mpi4jax")


def __getattr__(name: str) -> _Any:
    return _capitalised(name)
