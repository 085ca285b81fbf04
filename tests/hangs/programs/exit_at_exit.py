"""A function that rank 1 calls when it ends calls sys.exit."""

import atexit
import sys

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 1:
    atexit.register(sys.exit, 3)
else:
    mpi.barrier()
