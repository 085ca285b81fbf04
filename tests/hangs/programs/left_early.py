"""Rank 1 gathers where the others sum. What it sends is small, so that it does not wait."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 1:
    mpi.gather(jnp.ones(3), root=0)
else:
    mpi.allreduce(jnp.ones(3), MPI.SUM)
mpi.barrier()
