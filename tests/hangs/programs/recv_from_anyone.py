"""All wait for whoever sends."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
mpi.recv(jnp.ones(3), source=MPI.ANY_SOURCE)
