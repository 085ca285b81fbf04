"""The system stops rank 1."""

import os
import signal

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
mpi.barrier()
