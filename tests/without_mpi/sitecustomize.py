"""On the path of Python, hides all MPI libraries from mpi4py."""

from mpi4py import _mpiabi

_mpiabi.LIBMPI_PATH[:] = ["/nowhere"]
