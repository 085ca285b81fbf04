"""The logging switch, where mpi4jax 0.3 to 0.7 have it."""

from mpi4jax import _core
from mpi4jax._core import get_logging
from mpi4jax._internal.mpi.binding import abi
from mpi4jax._internal.operations._alone import set_logging

__all__ = ["MPI_STATUS_IGNORE_ADDR", "get_logging", "set_logging"]

#: `MPI_STATUS_IGNORE` as a number.
MPI_STATUS_IGNORE_ADDR = _core.status_ignore(abi())
