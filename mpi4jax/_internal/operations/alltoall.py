"""MPI_Alltoall (MPI-4.1 §6.8)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, check_first_axis, like

alltoall_p = Operation(
    "alltoall",
    results=lambda x, **_: [like(x)],
    batch_axes=lambda **_: (1, 1),
)


def alltoall(x: Any, *, comm: Any = None) -> Array:
    """Send a slice of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send. First axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received slices, stacked in rank order.

    """
    group = handles.communicator("alltoall", comm)
    check_first_axis("alltoall", x, group)
    (result,) = alltoall_p(group, x)
    return result


alltoall_p.def_linear(lambda cotangent, x, *, comm: alltoall_p.bind(cotangent, comm=comm))
