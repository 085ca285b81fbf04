"""Rank 2 of a ring exchanges with its neighbors once less."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

ring = MPI.COMM_WORLD.Create_cart([4], periods=[True])
ring.Set_name("ring")
rank = ring.Get_rank()
left, right = ring.Shift(0, 1)

x = [jnp.ones(3), jnp.ones(3)]
mpi.barrier()
for _ in range(1 if rank == 2 else 2):
    x = mpi.exchange(
        x, x, [left, right], [right, left], sendtag=[1, 2], recvtag=[1, 2], comm=ring
    )
mpi.barrier()
