"""MPI_Allgather (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..dtypes import SUM
from ..operation import Operation, SharedTranspose
from . import reduce_scatter
from ._arguments import Array, like

allgather_p = Operation(
    "allgather",
    results=lambda x, *, comm, **_: [
        like(x, (handles.communicator_at(comm).size, *x.shape)),
    ],
    batch_axes=lambda **_: (0, 1),
    traced=("shared",),
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
    (result,) = allgather_p(group, x, shared=True)
    return result


own_slice = SharedTranspose(
    allgather_p, lambda y, *, comm, **_: y[handles.communicator_at(comm).rank]
)


def _transpose(cotangent: Any, x: Any, *, shared: bool, comm: int) -> Any:
    if shared:
        return own_slice(cotangent, shared=shared, comm=comm)
    return reduce_scatter.reduce_scatter_p.bind(cotangent, op=SUM, comm=comm)


allgather_p.def_linear(_transpose)
