"""Nothing is called but an exchange by index lists, once more on rank 0."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import unstructured

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
plan = unstructured.Plan.from_global([rank, 1 - rank], [True, False], comm=comm)
fields = jnp.ones(2)
for _ in range(3 if rank == 0 else 2):
    fields = plan.exchange(fields)
fields.block_until_ready()
