"""Rank 2 waits for a message that nobody sends."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
x = jnp.ones(3)
mpi.barrier()
if rank == 2:
    x = mpi.recv(x, source=1, tag=5)
mpi.barrier()
