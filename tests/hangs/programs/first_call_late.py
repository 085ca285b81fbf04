"""Rank 1 makes its first call late."""

import time

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
if rank == 1:
    time.sleep(14)
print(mpi.allreduce(jnp.float32(1), MPI.SUM))
