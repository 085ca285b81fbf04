"""The operations without tokens, as in mpi4jax 0.8 and later."""

from ._internal.api import notoken as _api

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
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
]
