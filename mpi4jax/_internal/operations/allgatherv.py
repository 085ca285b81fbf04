"""MPI_Allgatherv (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..annotations import Array, ArrayLike, Comm, Counts
from ..dtypes import SUM
from ..handles import Communicator
from ..operation import Operation, SharedTranspose, named
from ..token import AnyToken, with_tokens, without_tokens
from ._arguments import check_rows, like, own_rows, row_counts

operation = Operation(
    "allgatherv",
    result=lambda x, *, counts, **_: like(x, (sum(counts), *x.shape[1:])),
    batch_axes=lambda **_: (1, 1),
    not_lowered=("shared",),
)


@without_tokens
def allgatherv(x: ArrayLike, counts: Counts, *, comm: Comm = None) -> Array:
    """Collect arrays of unequal length from all processes, on every process.

    Arguments:
        x: Array input to send. First axis must have size ``counts[rank]``; the others, and
            the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The arrays of all processes, one after the other in rank order: shape
        ``(sum(counts), ...)``.

    """
    communicator = handles.communicator("allgatherv", comm)
    counts = row_counts("allgatherv", "counts", counts, communicator)
    check_rows("allgatherv", "x", x, counts[communicator.rank])
    return operation(communicator, x, counts=counts, shared=True)


@with_tokens(allgatherv)
def allgatherv_with_token(
    x: ArrayLike, counts: Counts, *, comm: Comm = None, token: AnyToken | None = None
) -> tuple[Array, AnyToken]: ...


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
