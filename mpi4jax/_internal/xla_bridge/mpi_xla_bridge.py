"""Where the tests of mpi4jax 0.3 to 0.7 look for the logging switch."""

from . import get_logging, set_logging

__all__ = ["get_logging", "set_logging"]
