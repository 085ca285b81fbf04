"""What reductions have in common: operators, and the derivatives of those but the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.dtypes import OPERATORS, SUM
from ..xla.jax_compat import ad
from ._arguments import depend, zeros_after
from .primitive import Operation

#: How an array is reduced along an axis, for the operators with a derivative.
REDUCERS: dict[str, Callable[..., Any]] = {
    "SUM": jnp.sum,
    "PROD": jnp.prod,
    "MAX": jnp.max,
    "MIN": jnp.min,
}


def reducer(op_number: int) -> Callable[..., Any]:
    """How an array is reduced along an axis."""
    return REDUCERS[OPERATORS[op_number]]


def _name(op_number: int) -> str:
    if op_number < len(OPERATORS):
        return f"MPI.{OPERATORS[op_number]}"
    return "an operator of your own"


def depend_on_all(value: Any, gathered: Any) -> Any:
    """The value, whose derivatives depend on what was gathered, for JAX.

    They do so on some processes only, as the programs differ. All must come to the
    operations that transpose the gathering, though, of every derivative.
    """
    return depend(value, jnp.sum(jnp.sin(zeros_after(gathered))))


def def_derivatives(
    operation: Operation, transpose: Callable[..., Any], definition: Callable[..., Any]
) -> None:
    """Declare the derivatives of a reduction.

    Arguments:
        operation: The reduction.
        transpose: How it is transposed if the operator is the sum.
        definition: The same reduction, made from linear operations and what JAX can
            differentiate: a function of the operator, the reduction's result (a constant),
            the operands, and the other parameters. Only its tangents are used.

    """
    name = operation.name

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], *, op_number: int, **params: Any
    ) -> Any:
        if op_number == SUM:
            return operation.push(primals, tangents, op_number=op_number, **params)
        if op_number >= len(OPERATORS):
            raise NotImplementedError(
                f"{name} can't be differentiated with an operator of your own, of whose "
                "derivative nothing is known: give one by jax.custom_jvp or jax.custom_vjp"
            )
        if OPERATORS[op_number] not in REDUCERS:
            raise NotImplementedError(
                f"{name} can't be differentiated with op={_name(op_number)}: logical and "
                "bitwise operators have no derivative"
            )
        result = operation.apply(*primals, op_number=op_number, **params)
        _, tangent = jax.jvp(
            lambda *operands: definition(op_number, result, *operands, **params),
            tuple(primals),
            tuple(map(ad.instantiate_zeros, tangents)),
        )
        return [result], [tangent]

    def transpose_sum(cotangent: Any, *operands: Any, op_number: int, **params: Any) -> Any:
        if op_number != SUM:
            raise NotImplementedError(
                f"{name} can't be transposed with op={_name(op_number)}: it is linear "
                "with op=MPI.SUM only"
            )
        return transpose(cotangent, *operands, op_number=op_number, **params)

    operation.def_jvp(jvp)
    operation.def_transpose(transpose_sum)
