"""Rank 0 sends with another tag than rank 1 receives with."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
x = jnp.ones(1 << 20)
mpi.barrier()
if rank == 0:
    mpi.send(x, dest=1, tag=7)
else:
    x = mpi.recv(x, source=0, tag=8)
