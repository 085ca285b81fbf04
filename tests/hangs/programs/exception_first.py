"""Rank 1 fails before its first call, for which the others wait."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

if MPI.COMM_WORLD.Get_rank() == 1:
    raise FileNotFoundError("forcing.nc")
mpi.allreduce(jnp.ones(3), MPI.SUM).block_until_ready()
