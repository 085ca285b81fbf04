"""Operations that take the leaves of one tree as operands of their primitive."""

from __future__ import annotations

from dataclasses import dataclass

from mpi4jax._override import override

from ..arguments.types import Array
from ..xla.jax_compat import ShapedArray
from ._eager import ArrayOrLeaves, evaluate
from ._operation import Operation


@dataclass(frozen=True)
class LeafOperation(Operation):
    """An operation on the leaves of a tree, and on operands of numbers behind them."""

    takes_leaves = True

    @override
    def check_avals(self, function: str, *avals: ShapedArray) -> None:
        leaves, _ = self.split_operands(avals)
        (name,) = self.operands
        for leaf in leaves:
            self.check_dtype(function, name, leaf.dtype)

    @override
    def apply_to_leaves(self, *operands: ArrayOrLeaves) -> list[Array]:
        leaves, *numbers = operands
        return self.bind(*leaves, *numbers)

    @override
    def evaluate(self, *operands: Array) -> list[Array]:
        leaves, numbers = self.split_operands(operands)
        return evaluate(self, [list(leaves), *numbers]) or []
