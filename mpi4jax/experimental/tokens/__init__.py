"""The operations with tokens, as in mpi4jax 0.2 to 0.7."""

from ..._internal.operations.allgather import allgather_with_token as allgather
from ..._internal.operations.allgatherv import allgatherv_with_token as allgatherv
from ..._internal.operations.allreduce import allreduce_with_token as allreduce
from ..._internal.operations.alltoall import alltoall_with_token as alltoall
from ..._internal.operations.alltoallv import alltoallv_with_token as alltoallv
from ..._internal.operations.barrier import barrier_with_token as barrier
from ..._internal.operations.bcast import bcast_with_token as bcast
from ..._internal.operations.exchange import exchange_with_token as exchange
from ..._internal.operations.exscan import exscan_with_token as exscan
from ..._internal.operations.gather import gather_with_token as gather
from ..._internal.operations.gatherv import gatherv_with_token as gatherv
from ..._internal.operations.neighbor_allgather import (
    neighbor_allgather_with_token as neighbor_allgather,
)
from ..._internal.operations.neighbor_allgatherv import (
    neighbor_allgatherv_with_token as neighbor_allgatherv,
)
from ..._internal.operations.neighbor_alltoall import (
    neighbor_alltoall_with_token as neighbor_alltoall,
)
from ..._internal.operations.neighbor_alltoallv import (
    neighbor_alltoallv_with_token as neighbor_alltoallv,
)
from ..._internal.operations.recv import recv_with_token as recv
from ..._internal.operations.reduce import reduce_with_token as reduce
from ..._internal.operations.reduce_scatter import (
    reduce_scatter_with_token as reduce_scatter,
)
from ..._internal.operations.reduce_scatterv import (
    reduce_scatterv_with_token as reduce_scatterv,
)
from ..._internal.operations.scan import scan_with_token as scan
from ..._internal.operations.scatter import scatter_with_token as scatter
from ..._internal.operations.scatterv import scatterv_with_token as scatterv
from ..._internal.operations.send import send_with_token as send
from ..._internal.operations.sendrecv import sendrecv_with_token as sendrecv
from . import tree as tree

__all__ = [
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "exchange",
    "exscan",
    "gather",
    "gatherv",
    "neighbor_allgather",
    "neighbor_allgatherv",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatterv",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
]
