"""`mpi_xla_bridge_cuda`, under its name in mpi4jax 0.3."""

from .mpi_xla_bridge_cuda import get_logging, set_copy_to_host, set_logging

__all__ = ["get_logging", "set_copy_to_host", "set_logging"]
