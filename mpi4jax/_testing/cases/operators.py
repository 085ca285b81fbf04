"""MPI's reduction operators, with what NumPy has for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

Array = np.ndarray[Any, Any]


class Operator(NamedTuple):
    """A reduction operator, and what NumPy has for it."""

    name: str
    op: MPI.Op
    function: Callable[[Any, Any], Any]
    #: The identity element for a type, which an empty reduction gives.
    identity: Callable[[Any], Any] = lambda dtype: 0

    @np.errstate(all="ignore")
    def reduce(self, arrays: Sequence[Array]) -> Array:
        # NumPy, too, adds short floats in single precision and rounds after every sum.
        return functools.reduce(lambda a, b: self.function(a, b).astype(a.dtype), arrays)


def _one(dtype: Any) -> int:
    return 1


def _all_bits(dtype: Any) -> Any:
    return ~np.zeros((), dtype)


def _lowest(dtype: Any) -> Any:
    return jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.integer) else -np.inf


def _highest(dtype: Any) -> Any:
    return jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else np.inf


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("SUM", MPI.SUM, np.add),
        Operator("PROD", MPI.PROD, np.multiply, _one),
        Operator("MAX", MPI.MAX, np.maximum, _lowest),
        Operator("MIN", MPI.MIN, np.minimum, _highest),
        Operator("LAND", MPI.LAND, np.logical_and, _one),
        Operator("LOR", MPI.LOR, np.logical_or),
        Operator("LXOR", MPI.LXOR, np.logical_xor),
        Operator("BAND", MPI.BAND, np.bitwise_and, _all_bits),
        Operator("BOR", MPI.BOR, np.bitwise_or),
        Operator("BXOR", MPI.BXOR, np.bitwise_xor),
    )
}
SUM = OPERATORS["SUM"]
