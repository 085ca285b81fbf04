"""A module for each operation of the original's, with the function and its JAX primitive.

The function is that of the package above. Two packages below others share these modules:
`_src.notoken.collective_ops` and `experimental.notoken.collective_ops`.
"""

from . import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    gather,
    recv,
    reduce,
    scan,
    scatter,
    send,
    sendrecv,
)
