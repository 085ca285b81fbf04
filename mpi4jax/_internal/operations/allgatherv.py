"""MPI_Allgatherv (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any, overload

import jax.numpy as jnp
from jax import lax

from ..arguments.dtypes import SUM
from ..arguments.types import Array, ArrayLike, Comm, Counts, Integer, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray
from ._arguments import check_rows, like, needs_capacity, own_rows, row_counts
from ._calls import Call
from ._declaration import get_operation
from ._ragged import (
    CountsOperation,
    RowsOperation,
    check_padded,
    counts_array,
    fill_up,
    first_rows,
)
from ._shared import SharedOperation


class AllGatherV(SharedOperation):
    name = "allgatherv"
    unlowered_params = ("shared",)

    def written_aval(
        self, x: ShapedArray, *, counts: tuple[int, ...], **_: Any
    ) -> ShapedArray:
        return like(x, (sum(counts), *x.shape[1:]))

    def batch_axes(self, **_: Any) -> tuple[int, int]:
        return 1, 1

    def own_cotangent(
        self,
        cotangent: Any,
        *,
        counts: tuple[int, ...],
        communicator: Communicator,
        **_: Any,
    ) -> Any:
        return cotangent[own_rows(counts, communicator)]

    def transpose_unshared(
        self, cotangent: Any, x: Any, *, shared: bool, **params: Any
    ) -> Any:
        return get_operation("reduce_scatterv").apply(cotangent, **params, op_number=SUM)


class AllGatherVCounts(CountsOperation):
    name = "allgatherv_counts"
    operands = ("counts",)


class AllGatherVRows(RowsOperation, SharedOperation):
    name = "allgatherv_rows"
    operands = ("x", "counts")
    count_operands = 1
    unlowered_params = ("rows",)

    def own_cotangent(
        self,
        cotangent: Any,
        counts: Any,
        *,
        rows: int,
        communicator: Communicator,
        **_: Any,
    ) -> Any:
        rank = communicator.rank
        # As many rows as `x` has can be taken from any row on.
        zeros = jnp.zeros((rows, *cotangent.shape[1:]), cotangent.dtype)
        padded = jnp.concatenate([cotangent, zeros])
        start = counts[:rank].sum(dtype=counts.dtype)
        return first_rows(lax.dynamic_slice_in_dim(padded, start, rows), counts[rank])


operation = AllGatherV()
counts_operation = AllGatherVCounts()
rows_operation = AllGatherVRows()


def call(
    function: str, x: object, counts: Counts | ArrayLike, *, comm: Comm = None
) -> Call:
    """Prepare a call of `function`, a form of allgatherv."""
    communicator = handles.communicator(function, comm)
    needs_capacity(function, "counts", counts)
    counts = row_counts(function, "counts", counts, communicator.size)
    check_rows(function, "x", x, counts[communicator.rank])
    return Call(function, operation, communicator, x, counts=counts, shared=True)


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
    sizes = {"rows": rows, "capacity": capacity}
    recvcounts = Call(name, counts_operation, communicator, count, **sizes).run()
    result = Call(name, rows_operation, communicator, x, recvcounts, **sizes).run()
    return fill_up(result, recvcounts, padding)
