# Written by tools/forms.py (`make format`) from _internal/operations.
"""The operations without tokens, as in mpi4jax 0.8 and later."""

from .._internal.nonblocking.functions import (
    iallgather,
    iallgatherv,
    iallreduce,
    ialltoall,
    ialltoallv,
    ibarrier,
    ibcast,
    iexchange,
    iexscan,
    igather,
    igatherv,
    ineighbor_allgather,
    ineighbor_allgatherv,
    ineighbor_alltoall,
    ineighbor_alltoallv,
    irecv,
    ireduce,
    ireduce_scatter,
    ireduce_scatterv,
    iscan,
    iscatter,
    iscatterv,
    isend,
    isendrecv,
)
from .._internal.nonblocking.overlap import ordering_barrier, overlap
from .._internal.nonblocking.requests import wait
from .._internal.operations.allgather import allgather
from .._internal.operations.allgatherv import allgatherv
from .._internal.operations.allreduce import allreduce
from .._internal.operations.alltoall import alltoall
from .._internal.operations.alltoallv import alltoallv
from .._internal.operations.barrier import barrier
from .._internal.operations.bcast import bcast
from .._internal.operations.exchange import exchange
from .._internal.operations.exscan import exscan
from .._internal.operations.gather import gather
from .._internal.operations.gatherv import gatherv
from .._internal.operations.neighbor_allgather import neighbor_allgather
from .._internal.operations.neighbor_allgatherv import neighbor_allgatherv
from .._internal.operations.neighbor_alltoall import neighbor_alltoall
from .._internal.operations.neighbor_alltoallv import neighbor_alltoallv
from .._internal.operations.recv import recv
from .._internal.operations.reduce import reduce
from .._internal.operations.reduce_scatter import reduce_scatter
from .._internal.operations.reduce_scatterv import reduce_scatterv
from .._internal.operations.scan import scan
from .._internal.operations.scatter import scatter
from .._internal.operations.scatterv import scatterv
from .._internal.operations.send import send
from .._internal.operations.sendrecv import sendrecv
from .._internal.shared import shared

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
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibcast",
    "iexchange",
    "iexscan",
    "igather",
    "igatherv",
    "ineighbor_allgather",
    "ineighbor_allgatherv",
    "ineighbor_alltoall",
    "ineighbor_alltoallv",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "ireduce_scatterv",
    "iscan",
    "iscatter",
    "iscatterv",
    "isend",
    "isendrecv",
    "neighbor_allgather",
    "neighbor_allgatherv",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "ordering_barrier",
    "overlap",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatterv",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
    "shared",
    "wait",
]
# It takes its names from here.
from . import tree as tree
