"""The operations without tokens, as in mpi4jax 0.8 and later."""

from ._src.api import notoken as _api

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

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]
