"""`mpi4jax.notoken`, under its name in mpi4jax 0.4 and 0.5."""

from ...notoken import *
from ...notoken import __all__ as __all__
from . import tree as tree
