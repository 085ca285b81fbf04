"""Rank 1 waits for a message that rank 0 never sends, and rank 2 for a sum without it."""

import jax.numpy as jnp
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
x = jnp.ones(3)
mpi.barrier()
if rank == 0:
    mpi.barrier()
elif rank == 1:
    total = mpi4jax.iallreduce(x, MPI.SUM)
    mpi4jax.wait(mpi4jax.irecv(x, 0, tag=4))
else:
    total = mpi4jax.iallreduce(x, MPI.SUM)
    mpi4jax.wait(total)
