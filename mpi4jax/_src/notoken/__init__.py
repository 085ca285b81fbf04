"""The operations without tokens, where mpi4jax 0.6 and 0.7 have them."""

from mpi4jax.notoken import *
