"""Reductions, and the derivatives of reductions other than the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.dtypes import OPERATORS, SUM, check_reduction, identity
from ..arguments.types import Array, ArrayLike, DType
from ..xla.dependence import depend, zeros_after
from ..xla.jax_compat import Tangent
from ._operation import Operation
from ._transposes import Jvp, instantiated

#: The functions that reduce an array along an axis, for the operators with a derivative.
REDUCERS: dict[str, Callable[..., Array]] = {
    "SUM": jnp.sum,
    "PROD": jnp.prod,
    "MAX": jnp.max,
    "MIN": jnp.min,
}


def reducer(op_number: int) -> Callable[..., Array]:
    """The function that reduces an array along an axis as an operator does."""
    return REDUCERS[OPERATORS[op_number]]


def _operator_name(op_number: int) -> str:
    if op_number < len(OPERATORS):
        return f"MPI.{OPERATORS[op_number]}"
    return "an operator of your own"


def depend_on_all(value: Array, gathered: Array) -> Array:
    """The value, with derivatives that depend on a gathered array on all processes.

    Processes compute different functions of it: the root of a reduce differentiates all of
    `gathered`, and the others none. But all have to take part in the transpose of the
    gathering, and of each further derivative, so none may be a constant for JAX. The
    sine has derivatives of every order, which depend on its operand.
    """
    return depend(value, jnp.sin(zeros_after(gathered)))


@dataclass(frozen=True)
class Reduction(Operation):
    """A reduction by an operator. It is linear if that is the sum."""

    op_number: int

    def definition(self, *operands: Array) -> Array:
        """The reduction, by linear operations and functions that JAX differentiates."""
        raise NotImplementedError

    def tangent(
        self, result: Array, primals: Sequence[Array], tangents: Sequence[Array]
    ) -> Array:
        """The tangent of the result, if the operator isn't the sum."""
        tangent: Array
        _, tangent = jax.jvp(self.definition, tuple(primals), tuple(tangents))
        return tangent

    def reduce_some(self, gathered: Array, is_reduced: ArrayLike) -> Array:
        """Reduce the arrays of some processes, given the arrays gathered from all."""
        neutral = identity(self.op_number, gathered.dtype)
        mask = jnp.reshape(is_reduced, (-1, *(1,) * (gathered.ndim - 1)))
        return reducer(self.op_number)(jnp.where(mask, gathered, neutral), axis=0)

    @override
    def check_dtype(self, function: str, argument: str, dtype: DType) -> None:
        super().check_dtype(function, argument, dtype)
        check_reduction(function, argument, self.op_number, dtype)

    @property
    @override
    def is_linear(self) -> bool:
        return self.op_number == SUM

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        if self.is_linear:
            return super().jvp(primals, tangents)
        if self.op_number >= len(OPERATORS):
            raise NotImplementedError(
                f"{self.name} can't be differentiated with an operator of your own, of "
                "whose derivative nothing is known: give one by jax.custom_jvp or "
                "jax.custom_vjp"
            )
        if OPERATORS[self.op_number] not in REDUCERS:
            raise NotImplementedError(
                f"{self.name} can't be differentiated with "
                f"op={_operator_name(self.op_number)}: logical and bitwise operators have "
                "no derivative"
            )
        result = self.apply(*primals)
        return [result], [self.tangent(result, primals, instantiated(tangents))]

    @override
    def check_transpose(self) -> None:
        if not self.is_linear:
            raise NotImplementedError(
                f"{self.name} can't be transposed with "
                f"op={_operator_name(self.op_number)}: it is linear with op=MPI.SUM only"
            )
