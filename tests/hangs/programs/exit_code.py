"""Rank 1 leaves by sys.exit when all is done, long before the other rank."""

import sys
import time

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 1:
    sys.exit(5)
time.sleep(5)
