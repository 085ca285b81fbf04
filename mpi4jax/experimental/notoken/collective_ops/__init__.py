"""The modules of `_src.collective_ops`, here with the functions without tokens."""

from mpi4jax._src.collective_ops import __path__ as __path__
