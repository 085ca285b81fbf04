"""MPI_Allgather (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, like

allgather_p = Operation(
    "allgather",
    results=lambda x, *, comm: [
        like(x, (handles.communicator_at(comm).size, *x.shape)),
    ],
)


def allgather(x: Any, *, comm: Any = None) -> Array:
    """Collect an array from every process, on every process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The arrays of all processes, stacked in rank order: shape ``(nproc, *x.shape)``.

    """
    group = handles.communicator("allgather", comm)
    (result,) = allgather_p(group, x)
    return result
