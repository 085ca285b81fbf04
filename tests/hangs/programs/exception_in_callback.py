"""A callback raises on rank 1, in a compiled function."""

import jax
import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()


def check(x):
    if rank == 1:
        raise RuntimeError("not converged")
    return x


@jax.jit
def step(x):
    x = mpi.allreduce(x, MPI.SUM)
    x = jax.pure_callback(check, x, x)
    return mpi.allreduce(x, MPI.MAX)


mpi.barrier()
step(jnp.ones(3)).block_until_ready()
