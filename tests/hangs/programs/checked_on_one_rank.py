"""MPI4JAX_CHECK has to be set on all ranks. Here one has it."""

import os

import jax.numpy as jnp
from mpi4py import MPI

if MPI.COMM_WORLD.Get_rank() == 0:
    os.environ["MPI4JAX_CHECK"] = "1"

from mpi4jax import notoken as mpi

mpi.allreduce(jnp.ones(4), MPI.SUM)
