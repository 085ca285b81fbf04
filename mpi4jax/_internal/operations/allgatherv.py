"""MPI_Allgatherv (MPI-4.1 §6.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import jax.numpy as jnp
from jax import lax

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Counts, Integer, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import (
    check_rows,
    like,
    needs_capacity,
    own_rows,
    refuse_uneven,
    row_counts,
)
from ._calls import Call
from ._ragged import (
    CountsOperation,
    RowsOperation,
    check_padded,
    counts_array,
    fill_up,
    first_rows,
)
from ._rules import as_primitive
from ._shared import SharedOperation


@as_primitive
@dataclass(frozen=True)
class AllGatherV(SharedOperation):
    counts: tuple[int, ...]

    name = "allgatherv"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (sum(self.counts), *x.shape[1:]))

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def own_cotangent(self, cotangent: Array, *numbers: Array) -> Array:
        return cotangent[own_rows(self.counts, self.communicator)]


@as_primitive
@dataclass(frozen=True)
class AllGatherVCounts(CountsOperation):
    name = "allgatherv_counts"
    operands = ("counts",)
    is_same_everywhere = True


@as_primitive
@dataclass(frozen=True)
class AllGatherVRows(RowsOperation, SharedOperation):
    #: Number of rows of `x`.
    rows: int

    name = "allgatherv_rows"
    operands = ("x", "counts")
    count_operands = 1
    unlowered = ("rows", "shared")

    @override
    def own_cotangent(self, cotangent: Array, *numbers: Array) -> Array:
        (recvcounts,) = numbers
        rank, rows = self.communicator.rank_in_program(), self.rows
        # As many rows as `x` has can be taken from any row on.
        zeros = jnp.zeros((rows, *cotangent.shape[1:]), cotangent.dtype)
        padded = jnp.concatenate([cotangent, zeros])
        is_before = jnp.arange(recvcounts.size) < rank
        start = jnp.where(is_before, recvcounts, 0).sum(dtype=recvcounts.dtype)
        own = lax.dynamic_slice_in_dim(padded, start, rows)
        return first_rows(own, recvcounts[rank])


def call(
    function: str, x: ArrayLike | T, counts: Counts | ArrayLike, *, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of allgatherv."""
    communicator = handles.communicator(function, comm)
    refuse_uneven(function, communicator)
    needs_capacity(function, "counts", counts)
    counts = row_counts(function, "counts", counts, communicator.size)
    check_rows(function, "x", x, counts[communicator.rank])
    return Call(function, AllGatherV(communicator, counts), x)


@overload
def allgatherv(x: ArrayLike, counts: Counts, *, comm: Comm = None) -> Array: ...
@overload
def allgatherv(x: T, counts: Counts, *, comm: Comm = None) -> T: ...
@overload
def allgatherv(
    x: ArrayLike,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[Array, Array]: ...
@overload
def allgatherv(
    x: T,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[T, Array]: ...
def allgatherv(
    x: ArrayLike | T,
    counts: Counts | ArrayLike,
    *,
    capacity: Integer | None = None,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T | tuple[Array | T, Array]:
    """Collect arrays of unequal length from all processes, on every process.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size
            ``counts[rank]``; the others, and the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process. With a
            capacity, this is the number of rows that this process sends, which the program
            may compute. ``x`` may have more rows.
        capacity (int): The number of rows of the result, if ``counts`` is computed by the
            program. If there would be more rows, this is an error on all processes, and
            nothing is sent.
        fill_value: The value of the remaining rows of the result, if it has a capacity: a
            number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The arrays of all processes, one after the other in rank order: shape
        ``(sum(counts), ...)``. With a capacity, a tuple of these, padded to the shape
        ``(capacity, ...)``, and the number of rows received from each process.

    """
    raise_if_token_is_set(token, "allgatherv")
    name = "allgatherv"
    if capacity is None:
        return call(name, x, counts, comm=comm).run()
    communicator = handles.communicator(name, comm)
    rows, capacity, padding = check_padded(name, x, capacity, fill_value)
    count = counts_array(name, "counts", counts, ())
    of_counts = AllGatherVCounts(communicator, rows=rows, capacity=capacity)
    exchange_counts: Call[Array] = Call(name, of_counts, count)
    recvcounts = exchange_counts.run()
    of_rows = AllGatherVRows(communicator, rows=rows, capacity=capacity)
    move_rows: Call[Array | T] = Call(name, of_rows, x, recvcounts)
    return fill_up(move_rows.run(), recvcounts, padding)
