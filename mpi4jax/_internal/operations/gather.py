"""MPI_Gather (MPI-4.1 §6.5)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..jax_compat import ShapedArray
from ..operation import Operation
from . import scatter
from ._arguments import Array, is_rank, like, root_rank


def _results(x: ShapedArray, *, root: int, comm: int) -> list[ShapedArray]:
    size = handles.communicator_at(comm).size
    return [like(x, (size, *x.shape))] if is_rank(root, comm) else []


gather_p = Operation(
    "gather",
    results=_results,
    kept=lambda *, root, comm: None if is_rank(root, comm) else 0,
    batch_axes=lambda *, root, comm: (0, 1 if is_rank(root, comm) else 0),
)


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
    (result,) = gather_p(group, x, root=root_rank("gather", root, group))
    return result


def _transpose(cotangent: Any, x: Any, *, root: int, comm: int) -> Any:
    part = scatter.scatter_p.bind(cotangent, root=root, comm=comm)
    return part if is_rank(root, comm) else part + cotangent


gather_p.def_linear(_transpose)
