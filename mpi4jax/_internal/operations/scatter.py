"""MPI_Scatter (MPI-4.1 §6.6)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from . import gather
from ._arguments import Array, check_first_axis, is_rank, like, root_rank, zeros_after

scatter_p = Operation(
    "scatter",
    results=lambda x, *, root, comm: [like(x, x.shape[is_rank(root, comm) :])],
    sent=lambda *, root, comm: int(is_rank(root, comm)),
    batch_axes=lambda *, root, comm: (int(is_rank(root, comm)), 0),
)


def scatter(x: Any, root: Any, *, comm: Any = None) -> Array:
    """Send each process its slice of an array of one process.

    .. warning::

        Unlike mpi4py's scatter, this returns a *new* array with the received data.

    .. warning::

       The expected shape of the first argument differs between the root process and
       the others.

    Arguments:
        x: On root, the array to send, with shape ``(nproc, ...)``. Elsewhere, an array
           with the shape and dtype of the result, whose data is not read.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received slice.

    """
    group = handles.communicator("scatter", comm)
    root = root_rank("scatter", root, group)
    if group.rank == root:
        check_first_axis("scatter", x, group)
    (result,) = scatter_p(group, x, root=root)
    return result


def _transpose(cotangent: Any, x: Any, *, root: int, comm: int) -> Any:
    gathered = gather.gather_p.bind(cotangent, root=root, comm=comm)
    return gathered if is_rank(root, comm) else zeros_after(gathered)


scatter_p.def_linear(_transpose)
