"""MPI_Alltoallv (MPI-4.1 §6.8)."""

from __future__ import annotations

from .. import handles
from ..annotations import Array, ArrayLike, Comm, Counts
from ..operation import Operation
from ..token import AnyToken, with_tokens, without_tokens
from ._arguments import check_rows, like, row_counts

operation = Operation(
    "alltoallv",
    result=lambda x, *, recvcounts, **_: like(x, (sum(recvcounts), *x.shape[1:])),
    batch_axes=lambda **_: (1, 1),
)


@without_tokens
def alltoallv(
    x: ArrayLike, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Array:
    """Send a part of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send: the parts for all processes, one after the other in rank
            order, with shape ``(sum(sendcounts), ...)``.
        sendcounts (Sequence[int]): The size of the part for each process, along the first
            axis.
        recvcounts (Sequence[int]): The size of the part that comes from each process. It
            must be what that process has as ``sendcounts[rank]``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received parts, one after the other in rank order: shape
        ``(sum(recvcounts), ...)``.

    """
    communicator = handles.communicator("alltoallv", comm)
    sendcounts = row_counts("alltoallv", "sendcounts", sendcounts, communicator)
    recvcounts = row_counts("alltoallv", "recvcounts", recvcounts, communicator)
    rank = communicator.rank
    if sendcounts[rank] != recvcounts[rank]:
        raise ValueError(
            f"alltoallv got {sendcounts[rank]} rows in `sendcounts` and {recvcounts[rank]} "
            f"in `recvcounts` for this process itself (rank {rank}), expected the same "
            "number"
        )
    check_rows("alltoallv", "x", x, sum(sendcounts))
    return operation(communicator, x, sendcounts=sendcounts, recvcounts=recvcounts)


@with_tokens(alltoallv)
def alltoallv_with_token(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    comm: Comm = None,
    token: AnyToken | None = None,
) -> tuple[Array, AnyToken]: ...


operation.def_linear(
    lambda cotangent, x, *, sendcounts, recvcounts, communicator: operation.apply(
        cotangent, sendcounts=recvcounts, recvcounts=sendcounts, communicator=communicator
    )
)
