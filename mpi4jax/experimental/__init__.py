"""What mpi4jax 0.3 to 0.5 had under this name."""

from .._internal.auto_tokenize import auto_tokenize

__all__ = ["auto_tokenize"]
