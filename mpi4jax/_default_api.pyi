# What type checkers see at the top level of mpi4jax. This is the one file that differs
# between the two versions of a release: in 0.9 it has the names of `.notoken`.
from .experimental.tokens import *
