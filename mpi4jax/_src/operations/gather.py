"""MPI_Gather (MPI-4.1 §6.5)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..jax_compat import ShapedArray
from ..operation import Operation
from ..validation import enforce_types
from ._arguments import COMM, RANK, Array, is_root, like


def _results(x: ShapedArray, *, root: int, comm: int) -> list[ShapedArray]:
    group = handles.communicator_at(comm)
    return [like(x, (group.size, *x.shape))] if group.rank == root else []


gather_p = Operation("gather", results=_results)


@enforce_types(root=RANK, comm=COMM)
def gather(x: Any, root: Any, *, comm: Any = None) -> Array:
    """Collect an array from every process, on one process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array or scalar input to send.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        On root, the arrays of all processes, stacked in rank order: shape
        ``(nproc, *x.shape)``. Elsewhere, ``x``.

    """
    group = handles.communicator("gather", comm)
    if not is_root("gather", root, group):
        gather_p(x, root=int(root), comm=group.number)
        return x
    (result,) = gather_p(x, root=int(root), comm=group.number)
    return result
