"""MPI_Scan (MPI-4.1 §6.11.1)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, like

scan_p = Operation("scan", results=lambda x, **_: [like(x)], in_place=True)


def scan(x: Any, op: Any, *, comm: Any = None) -> Array:
    """Reduce an array over this process and those before it.

    Arguments:
        x: Array or scalar input to send.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction over the ranks from 0 to that of this process.

    """
    group = handles.communicator("scan", comm)
    (result,) = scan_p(group, x, op=handles.operator("scan", op))
    return result
