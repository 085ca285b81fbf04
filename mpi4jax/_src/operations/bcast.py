"""MPI_Bcast (MPI-4.1 §6.4)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, like, root_rank

bcast_p = Operation(
    "bcast",
    # Root has its result already.
    results=lambda x, *, root, comm: (
        [] if handles.communicator_at(comm).rank == root else [like(x)]
    ),
    in_place=True,
)


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
    results = bcast_p(group, x, root=root_rank("bcast", root, group))
    return results[0] if results else x
