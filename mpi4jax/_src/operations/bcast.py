"""MPI_Bcast (MPI-4.1 §6.4)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ..validation import enforce_types
from ._arguments import COMM, RANK, Array, is_root, like

bcast_p = Operation(
    "bcast",
    # Root has its result already.
    results=lambda x, *, root, comm: (
        [] if handles.communicator_at(comm).rank == root else [like(x)]
    ),
    in_place=True,
)


@enforce_types(root=RANK, comm=COMM)
def bcast(x: Any, root: Any, *, comm: Any = None) -> Array:
    """Send an array from one process to all others.

    .. warning::

        Unlike mpi4py's bcast, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input. Data is only read on the root process. On the others
            this determines the shape and dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received array (``x`` itself on the root process).

    """
    group = handles.communicator("bcast", comm)
    if is_root("bcast", root, group):
        bcast_p(x, root=int(root), comm=group.number)
        return x
    (result,) = bcast_p(x, root=int(root), comm=group.number)
    return result
