"""Operations whose row counts the program computes.

Such a call consists of two operations: the first one exchanges the row counts and checks
whether the rows fit, and the second one moves the rows. Derivatives know the row counts,
and only move rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from mpi4jax._override import override

from ..arguments.checks import array, integer
from ..arguments.types import Array, ArrayLike, PyTree
from ..xla.jax_compat import ShapedArray
from ._arguments import arrays_of, fill_leaves, like, padding
from ._operation import Operation

#: The types of counts that the core reads.
COUNT_TYPES = (np.int32, np.int64)


@dataclass(frozen=True)
class CountsOperation(Operation):
    """An exchange of row counts: its result is the number of rows from each process.

    It is an error on all processes if some rows don't fit on one of them.
    """

    #: Largest number of rows that this process can send.
    rows: int
    #: Largest number of rows that this process can receive.
    capacity: int

    count_operands = 1

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (self.communicator.size,))


@dataclass(frozen=True)
class RowsOperation(Operation):
    """An exchange of rows. The last operand is the number of rows from each process."""

    #: Number of rows of the result. The rows behind the received ones are zeros.
    capacity: int

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (self.capacity, *x.shape[1:]))

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def complete(self, result: Array, *operands: Array) -> Array:
        # MPI leaves the rows behind the received ones as they are.
        return first_rows(result, operands[-1].sum())


def first_rows(x: Array, count: Array, fill_value: Array | None = None) -> Array:
    """The first `count` rows of an array, with a value, or zeros, in place of the rest."""
    is_first = jnp.arange(x.shape[0]) < count
    value = jnp.zeros((), x.dtype) if fill_value is None else fill_value
    return jnp.where(is_first.reshape(-1, *(1,) * (x.ndim - 1)), x, value)


def counts_array(
    function: str, argument: str, counts: PyTree, shape: tuple[int, ...]
) -> Array:
    """Row counts that the program computes, as an array of this shape."""
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


def check_padded(
    function: str, x: PyTree, capacity: object, fill_value: ArrayLike
) -> tuple[int, int, list[Array | None]]:
    """The number of rows to send from, the capacity of the result, and its padding."""
    rows: set[int] = set()
    for name, leaf in arrays_of(function, "x", x):
        leaf = array(function, name, leaf)
        if np.ndim(leaf) == 0:
            raise ValueError(
                f"{function} got an array without axes for argument `{name}`, expected one "
                "with rows"
            )
        rows.add(np.shape(leaf)[0])
    if len(rows) > 1:
        raise ValueError(
            f"{function} got arrays with {min(rows)} and with {max(rows)} rows for "
            "argument `x`, expected the same number in all of a tree"
        )
    capacity = integer(function, "capacity", capacity)
    if capacity < 0:
        raise ValueError(
            f"{function} got {capacity} for argument `capacity`, expected a number of "
            "rows, not negative"
        )
    return max(rows, default=0), capacity, padding(function, "fill_value", fill_value, x, 1)


def fill_up(
    result: PyTree, counts: Array, padding: Sequence[Array | None]
) -> tuple[PyTree, Array]:
    """The result with its padding in the rows behind the received ones, and the counts."""

    def fill(x: Array, value: Array) -> Array:
        return first_rows(x, counts.sum(), value)

    return fill_leaves(fill, result, padding), counts
