"""Rank 0 saves a checkpoint, where the other one begins output. Nothing is written."""

from mpi4py import MPI

from mpi4jax import files

rank = MPI.COMM_WORLD.Get_rank()
if rank == 0:
    files.save("restart", {"step": 1})
else:
    files.Output("run.zarr")
