"""Linear regression, with the data spread over the processes.

mpiexec -n 2 python examples/data_parallel.py
"""

import sys

import jax
import jax.numpy as jnp
from mpi4py import MPI

try:
    from mpi4jax import notoken as mpi
except ImportError:  # mpi4jax >= 0.8 of the original, where there is nothing else
    import mpi4jax as mpi

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
true_weights = jnp.array([1.0, -2.0, 3.0])
inputs = jax.random.normal(jax.random.key(rank), (1000, 3))  # each process has its own
targets = inputs @ true_weights


def loss(weights):
    """The mean squared error over the data of all processes."""
    local = jnp.mean((inputs @ weights - targets) ** 2)
    return mpi.allreduce(local, op=MPI.SUM, comm=comm) / size


@jax.jit
def descend(weights):
    """One step downhill. Each process has the gradient of its own part: sum them."""
    gradient = mpi.allreduce(jax.grad(loss)(weights), op=MPI.SUM, comm=comm)
    return weights - 0.1 * gradient


weights = jax.lax.fori_loop(0, 100, lambda _, w: descend(w), jnp.zeros(3))
agree = bool(jnp.all(mpi.allgather(weights, comm=comm) == weights))
print(f"r{rank} | weights {weights}, same on all ranks: {agree}")
sys.exit(0 if agree and jnp.allclose(weights, true_weights, atol=1e-4) else 1)
