"""Rank 1 never makes a call without `comm=`, and rank 0 does."""

import jax
import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()


@jax.jit
def total(x):
    return mpi.allreduce(x, MPI.SUM)


if rank == 0:
    total(jnp.ones(3)).block_until_ready()
else:
    mpi.barrier(comm=MPI.COMM_WORLD)
