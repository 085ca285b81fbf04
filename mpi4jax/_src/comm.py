"""The communicator of calls without `comm`."""

from mpi4jax._internal.mpi.handles import get_default_comm

__all__ = ["get_default_comm"]
