"""Rank 1 computes in Python for a while."""

import time

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()


def prepare():
    time.sleep(14)


mpi.barrier()
if rank == 1:
    prepare()
print(mpi.allreduce(jnp.float32(1), MPI.SUM))
