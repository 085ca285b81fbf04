"""Rank 1 does not have the ranks ask each other, and rank 0 does."""

from mpi4py import MPI

from mpi4jax import diagnostics

if MPI.COMM_WORLD.Get_rank() == 0:
    diagnostics.watch()
