"""Rank 0 makes a plan, which all ranks have to make together."""

from mpi4py import MPI

from mpi4jax import unstructured

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
if rank == 0:
    plan = unstructured.Plan.from_global([0, 1], [True, False], comm=comm)
