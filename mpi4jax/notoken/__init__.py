"""The operations without tokens, as in mpi4jax 0.8 and later.

`__init__.pyi` shows them to editors and type checkers: `make stubs` writes it.
"""

from .._internal.forms.token import is_operation as _is_operation
from .._internal.nonblocking.functions import nonblocking as _nonblocking
from .._internal.nonblocking.overlap import in_order, ordering_barrier, overlap
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

# The nonblocking form of each operation.
for _name, _function in [*globals().items()]:
    if _name[0] != "_" and _is_operation(_function):
        globals()[f"i{_name}"] = _nonblocking(_function)

__all__ = sorted(name for name, x in globals().items() if name[0] != "_" and callable(x))

# It takes its names from here.
from . import tree as tree  # noqa: E402
