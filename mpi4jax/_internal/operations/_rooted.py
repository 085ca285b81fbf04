"""Operations with a root: a process that sends to all others, or gets from them."""

from __future__ import annotations

from dataclasses import dataclass

from ._operation import Operation


@dataclass(frozen=True)
class RootedOperation(Operation):
    """An operation that does something else on its root."""

    root: int

    @property
    def is_root(self) -> bool:
        return self.communicator.rank == self.root
