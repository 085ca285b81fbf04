"""A thread of rank 1 waits for ever, while its main thread makes a thousand calls."""

import threading

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
requests = MPI.COMM_WORLD.Dup()
x = jnp.ones(3)
mpi.barrier()


def serve():
    mpi.recv(x, source=0, comm=requests)


thread = threading.Thread(target=serve)
if rank == 1:
    thread.start()
for _ in range(1000):
    x = mpi.sendrecv(x, x, source=1 - rank, dest=1 - rank)
if rank == 1:
    thread.join()
else:
    mpi.barrier()
