"""MPI_Allgatherv (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation, SharedTranspose
from ._arguments import Array, check_rows, like, own_rows, row_counts

allgatherv_p = Operation(
    "allgatherv",
    results=lambda x, *, counts, comm: [like(x, (sum(counts), *x.shape[1:]))],
    batch_axes=lambda **_: (1, 1),
)


def allgatherv(x: Any, counts: Any, *, comm: Any = None) -> Array:
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
    group = handles.communicator("allgatherv", comm)
    counts = row_counts("allgatherv", "counts", counts, group)
    check_rows("allgatherv", "x", x, counts[group.rank])
    (result,) = allgatherv_p(group, x, counts=counts)
    return result


allgatherv_p.def_linear(
    SharedTranspose(allgatherv_p, lambda y, *, counts, comm: y[own_rows(counts, comm)])
)
