"""Operations that take the leaves of trees as operands of their primitive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.types import Array
from ..xla.jax_compat import ShapedArray
from ._eager import ArrayOrLeaves, evaluate
from ._operation import Operation

X = TypeVar("X")


@dataclass(frozen=True)
class LeafOperation(Operation):
    """An operation on all leaves of trees, and on operands of numbers behind them.

    Other operations have a call for each packed group of leaves. `operands` are the names
    of the trees.
    """

    def split_leaves(self, operands: Sequence[X]) -> tuple[Sequence[X], ...]:
        """The leaves of each tree, and the operands of numbers."""
        return self.split_operands(operands)

    @override
    def check_avals(self, function: str, *avals: ShapedArray) -> None:
        leaves, _ = self.split_operands(avals)
        for leaf in leaves:
            self.check_dtype(function, " or ".join(self.operands), leaf.dtype)

    @override
    def apply_to_leaves(self, *operands: ArrayOrLeaves) -> list[Array]:
        tree_count = len(self.operands)
        leaves = itertools.chain(*operands[:tree_count])
        return self.bind(*map(jnp.asarray, leaves), *operands[tree_count:])

    @override
    def evaluate(self, *operands: Array) -> list[Array]:
        *trees, numbers = self.split_leaves(operands)
        return evaluate(self, [*map(list, trees), *numbers]) or []
