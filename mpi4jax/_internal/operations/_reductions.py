"""Reductions: their operators, and the derivatives of those other than the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.dtypes import OPERATORS, SUM
from ..xla.dependence import depend, zeros_after
from ..xla.jax_compat import ad
from .primitive import Operation

#: The functions that reduce an array along an axis, for the operators with a derivative.
REDUCERS: dict[str, Callable[..., Any]] = {
    "SUM": jnp.sum,
    "PROD": jnp.prod,
    "MAX": jnp.max,
    "MIN": jnp.min,
}


def reducer(op_number: int) -> Callable[..., Any]:
    """The function that reduces an array along an axis as an operator does."""
    return REDUCERS[OPERATORS[op_number]]


def _operator_name(op_number: int) -> str:
    if op_number < len(OPERATORS):
        return f"MPI.{OPERATORS[op_number]}"
    return "an operator of your own"


def depend_on_all(value: Any, gathered: Any) -> Any:
    """The value, with derivatives that depend on a gathered array on all processes.

    Processes compute different functions of it: the root of a reduce differentiates all of
    `gathered`, and the others none. But all have to take part in the transpose of the
    gathering, and that of each further derivative, so none may be a constant for JAX. The
    sine has derivatives of every order, which depend on its operand.
    """
    return depend(value, jnp.sin(zeros_after(gathered)))


class Reduction(Operation):
    """A reduction by the parameter `op_number`. It is linear if the operator is the sum."""

    def definition(self, op_number: int, result: Any, *operands: Any, **params: Any) -> Any:
        """The reduction, made from linear operations and from what JAX differentiates.

        Only the tangents of this are used. `result` is that of the reduction, a constant.
        """
        raise NotImplementedError

    def jvp(
        self,
        primals: Sequence[Any],
        tangents: Sequence[Any],
        *,
        op_number: int,
        **params: Any,
    ) -> Any:
        if op_number == SUM:
            return super().jvp(primals, tangents, op_number=op_number, **params)
        if op_number >= len(OPERATORS):
            raise NotImplementedError(
                f"{self.name} can't be differentiated with an operator of your own, of "
                "whose derivative nothing is known: give one by jax.custom_jvp or "
                "jax.custom_vjp"
            )
        if OPERATORS[op_number] not in REDUCERS:
            raise NotImplementedError(
                f"{self.name} can't be differentiated with op={_operator_name(op_number)}: "
                "logical and bitwise operators have no derivative"
            )
        result = self.apply(*primals, op_number=op_number, **params)
        _, tangent = jax.jvp(
            lambda *operands: self.definition(op_number, result, *operands, **params),
            tuple(primals),
            tuple(map(ad.instantiate_zeros, tangents)),
        )
        return [result], [tangent]

    def check_transpose(self, *, op_number: int, **_: Any) -> None:
        if op_number != SUM:
            raise NotImplementedError(
                f"{self.name} can't be transposed with op={_operator_name(op_number)}: it "
                "is linear with op=MPI.SUM only"
            )
