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
FIRST_COMPUTED = -(2**63)
#: Smallest number that is a rank or a constant of MPI.
_SMALLEST_RANK = -(2**40)


def is_computed(rank: int) -> bool:
    """Whether a parameter stands for a rank that the program computes."""
    return rank < _SMALLEST_RANK


def parameter_of(rank: int | Array, computed: list[Array]) -> int:
    """A rank as a parameter. A rank that the program computes is added to the list."""
    if isinstance(rank, int):
        return rank
    computed.append(rank)
    return FIRST_COMPUTED + len(computed) - 1


def operand_of(computed: Sequence[Array]) -> tuple[Array, ...]:
    """The operand with the ranks that the program computes, if there are any."""
    if not computed:
        return ()
    return (jnp.stack([jnp.asarray(rank, np.int32) for rank in computed]),)


def split_computed(*ranks: int | Array) -> tuple[tuple[int, ...], tuple[Array, ...]]:
    """Ranks as parameters, and the operand of ranks that the program computes, if any."""
    computed: list[Array] = []
    parameters = tuple([parameter_of(rank, computed) for rank in ranks])
    return parameters, operand_of(computed)


def rank_in(rank: int, numbers: Sequence[Array]) -> int | Array:
    """The rank that a parameter is, or that it stands for in the last operand."""
    return numbers[-1][rank - FIRST_COMPUTED] if is_computed(rank) else rank


def choose(condition: bool | Array, value: Array, otherwise: Array) -> Array:
    """One of two arrays, by a condition that is known, or that the program computes."""
    if isinstance(condition, bool):
        return value if condition else otherwise
    return jnp.where(condition, value, otherwise)


def where_null(
    rank: int, numbers: Sequence[Array], value: Array, otherwise: Array
) -> Array:
    """One of two arrays, by whether a rank is MPI.PROC_NULL."""
    return choose(rank_in(rank, numbers) == PROC_NULL, value, otherwise)
