"""MPI_Scatter (MPI-4.1 §6.6)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..jax_compat import ShapedArray
from ..operation import Operation
from ._arguments import Array, check_first_axis, like, root_rank


def _results(x: ShapedArray, *, root: int, comm: int) -> list[ShapedArray]:
    is_root = handles.communicator_at(comm).rank == root
    return [like(x, x.shape[1:] if is_root else x.shape)]


def _sent(*, root: int, comm: int) -> int:
    return int(handles.communicator_at(comm).rank == root)


scatter_p = Operation("scatter", results=_results, sent=_sent)


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
