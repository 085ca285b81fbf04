"""The types in the signatures of mpi4jax, to annotate functions that call it.

`docs/api.md` says what each of them means.
"""

from ._internal.arguments.types import Comm, Op, RankTree, Token

__all__ = ["Comm", "Op", "RankTree", "Token"]
