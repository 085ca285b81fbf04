"""An exception ends rank 1, and another package shows it: as rich does."""

import sys

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
sys.excepthook = lambda kind, error, trace: print("oh dear:", error)
mpi.barrier()
if rank == 1:
    raise ValueError("no input")
mpi.barrier()
