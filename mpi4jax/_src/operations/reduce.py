"""MPI_Reduce (MPI-4.1 §6.9.1)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, like, root_rank

reduce_p = Operation(
    "reduce",
    results=lambda x, *, op, root, comm: (
        [like(x)] if handles.communicator_at(comm).rank == root else []
    ),
    in_place=True,
)


def reduce(x: Any, op: Any, root: Any, *, comm: Any = None) -> Array:
    """Reduce an array over all processes, with the result on one process.

    Arguments:
        x: Array or scalar input to send.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduced array on root, ``x`` elsewhere.

    """
    group = handles.communicator("reduce", comm)
    results = reduce_p(
        group,
        x,
        op=handles.operator("reduce", op),
        root=root_rank("reduce", root, group),
    )
    return results[0] if results else x
