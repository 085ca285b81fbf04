"""`mpi4jax.notoken.tree`, beside the older name of `mpi4jax.notoken`."""

from ...notoken.tree import *  # noqa: F403
from ...notoken.tree import __all__ as __all__
