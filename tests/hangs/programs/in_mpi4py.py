"""Rank 0 waits in mpi4py for a message that nobody sends."""

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 0:
    MPI.COMM_WORLD.recv(source=1)
mpi.barrier()
