"""Facts about the MPI in use."""

from mpi4py import MPI

from mpi4jax._core import get_logging
from mpi4jax._internal.mpi.binding import abi
from mpi4jax._internal.operations._alone import set_logging

from .mpi_xla_bridge import MPI_STATUS_IGNORE_ADDR

__all__ = ["MPI_ABI_INFO", "MPI_STATUS_IGNORE_ADDR", "get_logging", "set_logging"]

MPI_ABI_INFO = {
    "abi": abi(),
    "sizeof_comm": MPI._sizeof(MPI.Comm),
    "sizeof_datatype": MPI._sizeof(MPI.Datatype),
    "sizeof_op": MPI._sizeof(MPI.Op),
    "sizeof_status": MPI._sizeof(MPI.Status),
    "comm_world_handle": MPI._handleof(MPI.COMM_WORLD),
    "mpi_library_version": MPI.Get_library_version(),
}
