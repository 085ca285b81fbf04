"""Both ranks wait for a message of the other, and a thread of rank 1 might send one."""

import threading
import time

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()


def write_logs():
    while True:
        time.sleep(0.01)


mpi.barrier()
if rank == 1:
    threading.Thread(target=write_logs, name="logs", daemon=True).start()
mpi.recv(jnp.ones(3), source=1 - rank)
