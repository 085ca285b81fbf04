"""Operations with a root: a process that sends to all others, or receives from them.

In a `shard_map`, where the program is the same on all processes, each of them has the
arrays of the root, and uses them if it is the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpi4jax._override import override

from ..arguments.types import Array
from ._computed import choose, rank_in
from ._operation import Operation


@dataclass(frozen=True)
class RootedOperation(Operation):
    """An operation with a root."""

    root: int

    @property
    def is_uniform(self) -> bool:
        """Whether all processes have the same arrays, and the root is known at run time."""
        return self.communicator.is_on_mesh or self.is_computed

    @property
    def is_root(self) -> bool:
        """Whether this process is the root, where that is known."""
        return not self.is_uniform and self.communicator.rank == self.root

    @property
    def has_arrays_of_root(self) -> bool:
        """Whether this process has the operand or the result that only the root uses."""
        return self.is_uniform or self.is_root

    @override
    def ranks(self) -> Sequence[int]:
        return (self.root,)

    def at_root(self, value: Array, elsewhere: Array, numbers: Sequence[Array]) -> Array:
        """An array on the root, and another one elsewhere."""
        is_root = rank_in(self.root, numbers) == self.communicator.rank_in_program()
        return choose(is_root, value, elsewhere)
