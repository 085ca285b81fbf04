"""Two ranks of four call a collective operation on all of them."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
x = mpi.allreduce(jnp.float32(rank), MPI.MAX)
if rank % 2 == 0:
    x = mpi.allreduce(x, MPI.MIN)
mpi.barrier(comm=MPI.COMM_WORLD)
