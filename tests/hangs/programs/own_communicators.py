"""Nothing is called on the default communicator."""

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
comm = MPI.COMM_WORLD.Dup()
comm.Set_name("mine")
mpi.barrier(comm=comm)
if rank == 0:
    mpi.barrier(comm=comm)
