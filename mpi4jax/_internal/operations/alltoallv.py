"""MPI_Alltoallv (MPI-4.1 §6.8)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, check_rows, like, row_counts

alltoallv_p = Operation(
    "alltoallv",
    results=lambda x, *, sendcounts, recvcounts, comm: [
        like(x, (sum(recvcounts), *x.shape[1:]))
    ],
    batch_axes=lambda **_: (1, 1),
)


def alltoallv(x: Any, sendcounts: Any, recvcounts: Any, *, comm: Any = None) -> Array:
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
    group = handles.communicator("alltoallv", comm)
    sendcounts = row_counts("alltoallv", "sendcounts", sendcounts, group)
    recvcounts = row_counts("alltoallv", "recvcounts", recvcounts, group)
    if sendcounts[group.rank] != recvcounts[group.rank]:
        raise ValueError(
            f"alltoallv got {sendcounts[group.rank]} rows in `sendcounts` and "
            f"{recvcounts[group.rank]} in `recvcounts` for this process itself (rank "
            f"{group.rank}), expected the same number"
        )
    check_rows("alltoallv", "x", x, sum(sendcounts))
    (result,) = alltoallv_p(group, x, sendcounts=sendcounts, recvcounts=recvcounts)
    return result


alltoallv_p.def_linear(
    lambda cotangent, x, *, sendcounts, recvcounts, comm: alltoallv_p.bind(
        cotangent, sendcounts=recvcounts, recvcounts=sendcounts, comm=comm
    )
)
