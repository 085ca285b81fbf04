"""MPI_Barrier (MPI-4.1 §6.3)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation

barrier_p = Operation("barrier", operands=(), results=lambda **_: [])


def barrier(*, comm: Any = None) -> None:
    """Wait until every process has come here.

    Arguments:
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    barrier_p(handles.communicator("barrier", comm))
