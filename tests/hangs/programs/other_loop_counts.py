"""Each rank goes on until its own part has converged: rank 0 has less to do."""

import jax
import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
other = 1 - rank


@jax.jit
def solve(x):
    def step(x):
        neighbor = mpi.sendrecv(x, x, source=other, dest=other)
        return x / 2 + 0 * neighbor

    x = jax.lax.while_loop(lambda x: jnp.max(x) > 1, step, x)
    return mpi.allreduce(x, MPI.SUM)


solve(jnp.full(3, 10.0 + 100 * rank)).block_until_ready()
