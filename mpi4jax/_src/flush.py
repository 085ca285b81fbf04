"""Waiting for what has been dispatched."""

from mpi4jax._internal.xla.flush import flush

__all__ = ["flush"]
