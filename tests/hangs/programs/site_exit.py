"""Rank 1 leaves by the `exit` that interactive sessions have."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 1:
    exit(3)
print(mpi.allgather(jnp.ones(2)))
