"""Rank 0 computes for ever."""

import time

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()


def relax():
    while True:
        time.sleep(0.01)


mpi.barrier()
if rank == 0:
    relax()
mpi.barrier()
