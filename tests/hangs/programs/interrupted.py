"""Ctrl-C on rank 1, twice, while it waits for a message and the other rank computes."""

import os
import subprocess
import time

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 0:
    time.sleep(600)
else:
    interrupt = f"kill -INT {os.getpid()}"
    subprocess.Popen(["sh", "-c", f"sleep 1; {interrupt}; sleep 10; {interrupt}"])
    mpi.recv(jnp.ones(3), source=0)
