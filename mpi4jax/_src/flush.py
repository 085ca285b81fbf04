"""Waiting for all dispatched programs."""

from mpi4jax._internal.xla.flush import flush

__all__ = ["flush"]
