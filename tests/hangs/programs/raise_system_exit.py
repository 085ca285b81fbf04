"""Rank 1 leaves by SystemExit itself, which cannot be seen in advance."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 1:
    raise SystemExit(3)
print(mpi.allgather(jnp.ones(2)))
