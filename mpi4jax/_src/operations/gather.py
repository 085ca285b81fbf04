"""MPI_Gather (MPI-4.1 §6.5)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..jax_compat import ShapedArray
from ..operation import Operation
from ._arguments import Array, like, root_rank


def _results(x: ShapedArray, *, root: int, comm: int) -> list[ShapedArray]:
    group = handles.communicator_at(comm)
    return [like(x, (group.size, *x.shape))] if group.rank == root else []


gather_p = Operation("gather", results=_results)


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
    results = gather_p(group, x, root=root_rank("gather", root, group))
    return results[0] if results else x
