"""Ranks that the program computes.

In a `shard_map`, where the program is the same on all processes, `jax.lax.axis_index` is
the rank, and the ranks of others follow from it. Among the parameters of an operation, such
a rank is a number that stands for its position in the last operand, an array of all.
The handlers of the core have them from there, under names that end in `_computed`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from ..arguments.types import Array
from ._arguments import PROC_NULL

#: The parameter that stands for the first computed rank. Others follow.
FIRST = -(2**63)
#: More than that is a rank, or one of MPI's special values.
_LAST = -(2**40)


def is_computed(rank: int) -> bool:
    """Whether a parameter stands for a rank that the program computes."""
    return rank < _LAST


def split_computed(*ranks: int | Array) -> tuple[tuple[int, ...], tuple[Array, ...]]:
    """Ranks as parameters, and the operand with those that the program computes, if any."""
    computed = [rank for rank in ranks if not isinstance(rank, int)]
    if not computed:
        return ranks, ()  # type: ignore[return-value]
    positions = iter(range(FIRST, FIRST + len(computed)))
    parameters = tuple(rank if isinstance(rank, int) else next(positions) for rank in ranks)
    return parameters, (jnp.stack([jnp.asarray(rank, np.int32) for rank in computed]),)


def rank_in(rank: int, numbers: Sequence[Array]) -> int | Array:
    """A rank that is a parameter, or the one that it stands for in the last operand."""
    return numbers[-1][rank - FIRST] if is_computed(rank) else rank


def choose(condition: bool | Array, value: Array, otherwise: Array) -> Array:
    """One of two arrays, by a condition that is known, or that the program computes."""
    if isinstance(condition, bool):
        return value if condition else otherwise
    return jnp.where(condition, value, otherwise)


def where_null(
    source: int, numbers: Sequence[Array], cotangent: Array, zeros: Array
) -> Array:
    """The cotangent of an array that is the result where nobody sends any."""
    return choose(rank_in(source, numbers) == PROC_NULL, cotangent, zeros)
