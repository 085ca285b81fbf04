"""The operations on trees, in their form with tokens."""

from ..._internal.tree import allgather_with_token as allgather
from ..._internal.tree import allreduce_with_token as allreduce
from ..._internal.tree import alltoall_with_token as alltoall
from ..._internal.tree import bcast_with_token as bcast
from ..._internal.tree import gather_with_token as gather
from ..._internal.tree import recv_with_token as recv
from ..._internal.tree import reduce_scatter_with_token as reduce_scatter
from ..._internal.tree import reduce_with_token as reduce
from ..._internal.tree import scan_with_token as scan
from ..._internal.tree import scatter_with_token as scatter
from ..._internal.tree import send_with_token as send
from ..._internal.tree import sendrecv_with_token as sendrecv

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]
