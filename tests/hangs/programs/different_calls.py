"""Each rank waits for another message."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
mpi.barrier()
mpi.recv(jnp.ones(3 + rank), (rank + 1) % size, tag=rank).block_until_ready()
