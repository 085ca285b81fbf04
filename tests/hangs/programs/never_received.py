"""Rank 0 sends three messages, of which rank 1 receives two."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()

if rank == 0:
    for _ in range(3):
        mpi.send(jnp.ones(4), 1)
else:
    for _ in range(2):
        mpi.recv(jnp.ones(4), 0)
