"""MPI_Allgatherv (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any, overload

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arguments.dtypes import SUM
from ..arguments.types import Array, ArrayLike, Comm, Counts, Integer
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import check_rows, like, needs_capacity, own_rows, row_counts
from ._ragged import Rows, counts_array, counts_of_all, filled_up, first_rows, room
from .primitive import Operation, SharedTranspose, named

operation = Operation(
    "allgatherv",
    result=lambda x, *, counts, **_: like(x, (sum(counts), *x.shape[1:])),
    batch_axes=lambda **_: (1, 1),
    not_lowered=("shared",),
)

#: The same in two steps, with counts that only the running program knows.
counts_operation = counts_of_all("allgatherv_counts", "counts")
rows_operation = Rows("allgatherv_rows", ("x", "counts"), not_lowered=("rows",))


@overload
def allgatherv(x: ArrayLike, counts: Counts, *, comm: Comm = None) -> Array: ...


@overload
def allgatherv(
    x: ArrayLike,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[Array, Array]: ...


@without_tokens
def allgatherv(
    x: ArrayLike,
    counts: Counts | ArrayLike,
    *,
    capacity: Integer | None = None,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Array | tuple[Array, Array]:
    """Collect arrays of unequal length from all processes, on every process.

    Arguments:
        x: Array input to send. First axis must have size ``counts[rank]``; the others, and
            the dtype, must be the same on all processes.
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
    name = "allgatherv"
    communicator = handles.communicator(name, comm)
    if capacity is not None:
        x, capacity, padding = room(name, x, capacity, fill_value)
        own, rows = counts_array(name, "counts", counts, ()), np.shape(x)[0]
        found = counts_operation(communicator, own, rows=rows, capacity=capacity)
        result = rows_operation(communicator, x, found, rows=rows, capacity=capacity)
        return filled_up(result, found, padding)
    needs_capacity(name, "counts", counts)
    counts = row_counts(name, "counts", counts, communicator)
    check_rows(name, "x", x, counts[communicator.rank])
    return operation(communicator, x, counts=counts, shared=True)


rows_of_this = SharedTranspose(
    operation, lambda y, *, counts, communicator, **_: y[own_rows(counts, communicator)]
)


def _transpose(
    cotangent: Any,
    x: Any,
    *,
    counts: tuple[int, ...],
    shared: bool,
    communicator: Communicator,
) -> Any:
    if shared:
        return rows_of_this(
            cotangent, counts=counts, shared=shared, communicator=communicator
        )
    return named("reduce_scatterv").apply(
        cotangent, counts=counts, op_number=SUM, communicator=communicator
    )


operation.def_linear(_transpose)


def _own_rows(
    y: Any, counts: Any, *, rows: int, communicator: Communicator, **_: Any
) -> Any:
    rank = communicator.rank
    # So many rows from any one on are there.
    padded = jnp.concatenate([y, jnp.zeros((rows, *y.shape[1:]), y.dtype)])
    own = lax.dynamic_slice_in_dim(padded, counts[:rank].sum(dtype=counts.dtype), rows)
    return first_rows(own, counts[rank])


own_rows_of = SharedTranspose(rows_operation, _own_rows)
rows_operation.def_linear(lambda *args, **params: (own_rows_of(*args, **params), None))
