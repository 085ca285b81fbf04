"""Rank 0 frees a communicator that rank 1 still uses."""

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
comm = MPI.COMM_WORLD.Dup()
comm.Set_name("pairs")
mpi.barrier()
x = mpi.allreduce(jnp.ones(2), MPI.SUM, comm=comm)
if rank == 0:
    comm.Free()
else:
    x = mpi.allreduce(x, MPI.SUM, comm=comm)
mpi.barrier()
