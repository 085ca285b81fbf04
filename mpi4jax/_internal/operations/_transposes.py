"""Tangents and cotangents of an operation's operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

from ..arguments.types import Array
from ..xla.jax_compat import ShapedArray, ad

if TYPE_CHECKING:
    from ..xla.jax_compat import UndefinedPrimal, Zero
    from ._operation import Operation

#: The tangent of an array, or JAX's word that it is zero.
Tangent: TypeAlias = "Array | Zero"
#: An operand of a call that is transposed: the type of one by which it is, or an array.
TransposedOperand: TypeAlias = Any
#: The cotangent of the operand, or of each one. What is an array there has none.
Cotangents: TypeAlias = "Array | tuple[Array | None, ...]"


def transpose(
    cotangents: Sequence[Tangent], *operands: Array | UndefinedPrimal, operation: Operation
) -> list[Array | None]:
    """JAX's rule: a cotangent for each operand that the operation is transposed by.

    A process whose cotangent is zero has to call MPI nevertheless: others wait for it.
    """
    operation.check_transpose()
    is_linear = list(map(ad.is_undefined_primal, operands))
    args = (x.aval if n else x for x, n in zip(operands, is_linear, strict=True))
    transposed = operation.transpose(*map(ad.instantiate_zeros, cotangents), *args)
    if not isinstance(transposed, tuple):
        transposed = (transposed,)
    return [ct if n else None for ct, n in zip(transposed, is_linear, strict=True)]


def tangents_of(results: Sequence[Array], inexact: Sequence[Tangent]) -> list[Tangent]:
    """The tangents of results, from those of the inexact ones. Integers have none."""
    remaining, float0 = iter(inexact), jax.dtypes.float0
    return [
        next(remaining) if is_inexact(x) else ad.Zero(ShapedArray(x.shape, float0))
        for x in results
    ]


def inexact_tangents(primals: Sequence[Array], tangents: Sequence[Tangent]) -> list[Array]:
    """The tangents of those arrays that have any, with zeros where JAX knows of none."""
    pairs = zip(primals, tangents, strict=True)
    return [ad.instantiate_zeros(tangent) for x, tangent in pairs if is_inexact(x)]


def is_inexact(x: Array | ShapedArray) -> bool:
    """Whether an array, or its type, has tangents."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))
