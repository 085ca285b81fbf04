"""Where the tests of mpi4jax 0.9 look for facts about the MPI in use."""

from . import MPI_ABI_INFO

__all__ = ["MPI_ABI_INFO"]
