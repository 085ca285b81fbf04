"""Nothing is called on the default communicator, but ranks may ask each other."""

from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi

mpi4jax.diagnostics.watch()
comm = MPI.COMM_WORLD.Dup()
comm.Set_name("mine")
mpi.barrier(comm=comm)
if comm.Get_rank() == 0:
    mpi.barrier(comm=comm)
