"""The barrier as an operation: of `barrier`, and of calls whose trees are compared."""

from __future__ import annotations

from dataclasses import dataclass

from mpi4jax._override import override

from ..xla.jax_compat import ShapedArray
from ._operation import Operation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class Barrier(Operation):
    #: A hash of the tree that is passed next, which processes compare with MPI4JAX_CHECK.
    structure: int = 0

    name = "barrier"
    operands = ()
    has_result = False

    @override
    def written_aval(self, *avals: ShapedArray) -> None:
        return None
