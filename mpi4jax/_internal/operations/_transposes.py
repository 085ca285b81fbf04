"""How the cotangents of an operation's results become those of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..xla.jax_compat import ShapedArray, ad
from ._declaration import Declaration


def transpose(
    operation: Declaration, cotangents: Sequence[Any], *operands: Any, **params: Any
) -> list[Any]:
    """JAX's rule: a cotangent for each operand that the operation is transposed by.

    A process whose cotangent is zero has to call MPI nevertheless: others wait for it.
    """
    operation.check_transpose(**params)
    is_linear = list(map(ad.is_undefined_primal, operands))
    args = (x.aval if n else x for x, n in zip(operands, is_linear, strict=True))
    transposed = operation.transpose(
        *map(ad.instantiate_zeros, cotangents), *args, **params
    )
    if not isinstance(transposed, tuple):
        transposed = (transposed,)
    return [ct if n else None for ct, n in zip(transposed, is_linear, strict=True)]


def tangents_of(results: Sequence[Any], inexact: Sequence[Any]) -> list[Any]:
    """The tangents of results, from those of the inexact ones. Integers have none."""
    remaining, float0 = iter(inexact), jax.dtypes.float0
    return [
        next(remaining) if is_inexact(x) else ad.Zero(ShapedArray(x.shape, float0))
        for x in results
    ]


def inexact_tangents(primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The tangents of those arrays that have any, with zeros where JAX knows of none."""
    pairs = zip(primals, tangents, strict=True)
    return [ad.instantiate_zeros(tangent) for x, tangent in pairs if is_inexact(x)]


def is_inexact(x: Any) -> bool:
    """Whether an array, or its type, has tangents."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))
