"""Sums until somebody ends it."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

x = jnp.ones(1000)
for step in range(10**9):
    x = mpi.allreduce(x, op=MPI.MAX)
    if step == 100 and MPI.COMM_WORLD.rank == 0:
        print("it runs", flush=True)
