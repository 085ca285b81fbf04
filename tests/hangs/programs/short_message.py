"""Rank 0 sends less than rank 1 makes room for, where MPI leaves the rest as it is."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()


def send_edge(field):
    mpi.send(field[1:], 1, tag=7)


if rank == 0:
    send_edge(jnp.ones(4))
else:
    mpi.recv(jnp.ones(4), 0, tag=7)
