"""A module for each operation of the original's, with the function and its JAX primitive.

Each module takes the function from the package that contains `collective_ops`. So these
files also serve as `_src.notoken.collective_ops` and `experimental.notoken.collective_ops`,
which have the functions without tokens.
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
