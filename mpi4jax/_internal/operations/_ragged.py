"""What is common to operations whose counts only the running program knows.

Such a call is two: one tells every process how many rows come, and finds out whether they
fit, and one moves them. Derivatives know the counts, and only move rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..arguments.checks import array, integer
from ..xla.jax_compat import ShapedArray
from ._arguments import like, padding
from .primitive import Operation

#: The types of counts that the core reads.
COUNT_TYPES = (np.int32, np.int64)


class Rows(Operation):
    """Moves rows, the last operand being how many come from each process.

    What is behind them, up to the capacity, are zeros.
    """

    def __init__(self, name: str, operands: Sequence[str], **options: Any) -> None:
        super().__init__(
            name,
            operands=operands,
            constants=operands[1:],
            result=lambda x, *_, capacity, **__: like(x, (capacity, *x.shape[1:])),
            batch_axes=lambda **_: (1, 1),
            **options,
        )

    def apply(self, *operands: Any, **params: Any) -> Any:
        return first_rows(super().apply(*operands, **params), operands[-1].sum())


def first_rows(x: Any, number: Any, fill_value: Any = None) -> Any:
    """So many rows of an array, and others with a value, or zeros, in place of the rest."""
    is_kept = jnp.arange(x.shape[0]) < number
    value = jnp.zeros((), x.dtype) if fill_value is None else fill_value
    return jnp.where(is_kept.reshape(-1, *(1,) * (x.ndim - 1)), x, value)


def counts_of_all(name: str, operand: str) -> Operation:
    """An operation that gives how many rows come from each process.

    Its parameters are the rows that this process can send, and the capacity for those that
    come. It is an error on all processes if some of them don't fit on one.
    """

    def result(counts: ShapedArray, *, communicator: Any, **_: Any) -> ShapedArray:
        return like(counts, (communicator.size,))

    return Operation(name, operands=(operand,), constants=(operand,), result=result)


def counts_array(function: str, argument: str, counts: Any, shape: tuple[int, ...]) -> Any:
    """Numbers of rows that a program has computed, as an array of this shape."""
    if isinstance(counts, (list, tuple)):
        counts = np.asarray(counts)
    counts = array(function, argument, counts)
    dtype = jnp.result_type(counts)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(
            f"{function} got an array of {dtype} for argument `{argument}`, expected "
            "integers"
        )
    if np.shape(counts) != shape:
        expected = "a number" if shape == () else f"an array of shape {shape}"
        raise ValueError(
            f"{function} got an array of shape {np.shape(counts)} for argument "
            f"`{argument}`, expected {expected}"
        )
    return jnp.asarray(counts, dtype if dtype in COUNT_TYPES else jnp.result_type(int))


def room(function: str, x: Any, capacity: Any, fill_value: Any) -> tuple[Any, int, Any]:
    """The array to send, the capacity, and the value of the rows that nobody sends.

    The value is None for zeros.
    """
    x = array(function, "x", x)
    if np.ndim(x) == 0:
        raise ValueError(
            f"{function} got an array without axes for argument `x`, expected one with rows"
        )
    capacity = integer(function, "capacity", capacity)
    if capacity < 0:
        raise ValueError(
            f"{function} got {capacity} for argument `capacity`, expected a number of "
            "rows, not negative"
        )
    return x, capacity, padding(function, "fill_value", fill_value, x, np.shape(x)[1:])


def filled_up(result: Any, counts: Any, fill_value: Any) -> tuple[Any, Any]:
    """The rows that came, the given value behind them, and how many came from each."""
    if fill_value is not None:
        result = first_rows(result, counts.sum(), fill_value)
    return result, counts
