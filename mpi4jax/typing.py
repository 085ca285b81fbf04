"""Types in the signatures of mpi4jax, for annotations of functions that call mpi4jax.

`docs/api.md` describes each type.
"""

from ._internal.arguments.types import Comm, Op, RankTree, Token

__all__ = ["Comm", "Op", "RankTree", "Token"]
