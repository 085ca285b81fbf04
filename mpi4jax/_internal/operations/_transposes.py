"""Tangents and cotangents of an operation's operands and results."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from ..arguments.types import Array, Shaped
from ..xla.jax_compat import ShapedArray, Tangent, UndefinedPrimal, ad

#: The results of a call, and their tangents.
Jvp: TypeAlias = "tuple[Sequence[Array], Sequence[Tangent]]"
#: An operand of a call that is transposed: an array, or, if the call is transposed by this
#: operand, JAX's placeholder with its type.
Operand: TypeAlias = "Array | UndefinedPrimal"
#: The cotangents of operands. None for an operand that is an array.
Cotangents: TypeAlias = "Sequence[Array | None]"


@functools.singledispatch
def transpose_rule(
    operation: Any,
    cotangents: Sequence[Array],
    types: Sequence[Shaped],
    numbers: Sequence[Array],
) -> Cotangents:
    """The rule of :meth:`Operation.transpose` for the class of an operation.

    `_transpose_table.py` has the rules.
    """
    raise NotImplementedError(f"{operation.name} can't be transposed")


def instantiated(tangents: Iterable[Tangent]) -> list[Array]:
    """Tangents, or cotangents, with arrays in place of JAX's symbolic zeros."""
    return list(map(ad.instantiate_zeros, tangents))


def array_or_aval(operand: Operand) -> Array | ShapedArray:
    """The operand, or its type if the call is transposed by it."""
    return operand.aval if isinstance(operand, ad.UndefinedPrimal) else operand


def known(operands: Iterable[Operand]) -> list[Array]:
    """The operands that a call is not transposed by."""
    return [x for x in operands if not isinstance(x, ad.UndefinedPrimal)]


def cotangents_of(
    operands: Sequence[Operand], cotangents: Iterable[Array | None]
) -> list[Array | None]:
    """The cotangents of the operands that a call is transposed by, and None for others."""
    pairs = zip(operands, cotangents, strict=True)
    return [ct if isinstance(x, ad.UndefinedPrimal) else None for x, ct in pairs]


def tangents_of(results: Sequence[Array], inexact: Sequence[Tangent]) -> list[Tangent]:
    """The tangents of all results, given the inexact ones' tangents. Integers have none."""
    remaining, float0 = iter(inexact), jax.dtypes.float0
    return [
        next(remaining) if is_inexact(x) else ad.Zero(ShapedArray(x.shape, float0))
        for x in results
    ]


def inexact_tangents(primals: Sequence[Array], tangents: Sequence[Tangent]) -> list[Array]:
    """The tangents of the inexact arrays, with arrays in place of symbolic zeros."""
    pairs = zip(primals, tangents, strict=True)
    return instantiated(tangent for x, tangent in pairs if is_inexact(x))


def is_inexact(x: Shaped) -> bool:
    """Whether an array, or its type, has tangents."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))
