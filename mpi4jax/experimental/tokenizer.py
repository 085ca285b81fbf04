"""`auto_tokenize`, where mpi4jax 0.3 has it."""

from .._internal.older_api.auto_tokenize import auto_tokenize

__all__ = ["auto_tokenize"]
