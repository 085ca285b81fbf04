"""Waiting for what has been dispatched."""

from mpi4jax._internal.flush import flush

__all__ = ["flush"]
