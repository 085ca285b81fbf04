"""Ctrl-C on rank 1, while it waits for a message and the other rank computes."""

import os
import signal
import threading
import time

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
mpi.barrier()
if rank == 0:
    time.sleep(600)
else:
    threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT]).start()
    mpi.recv(jnp.ones(3), source=0)
