"""Rank 0 makes a communicator by mpi4py, which all ranks have to make together."""

from mpi4py import MPI

from mpi4jax import notoken as mpi

world = MPI.COMM_WORLD
mpi.barrier(comm=world)
if world.Get_rank() == 0:
    grid = world.Create_cart([world.Get_size()])
