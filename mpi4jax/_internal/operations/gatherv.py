"""MPI_Gatherv (MPI-4.1 §6.5)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..jax_compat import ShapedArray
from ..operation import Operation
from . import scatterv
from ._arguments import Array, check_rows, is_rank, like, root_rank, row_counts


def _results(
    x: ShapedArray, *, counts: tuple[int, ...], root: int, comm: int
) -> list[ShapedArray]:
    return [like(x, (sum(counts), *x.shape[1:]))] if is_rank(root, comm) else []


gatherv_p = Operation(
    "gatherv",
    results=_results,
    kept=lambda *, counts, root, comm: None if is_rank(root, comm) else 0,
    batch_axes=lambda **_: (1, 1),
)


def gatherv(x: Any, counts: Any, root: Any, *, comm: Any = None) -> Array:
    """Collect arrays of unequal length from all processes, on one process.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array input to send. First axis must have size ``counts[rank]``; the others, and
            the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        On root, the arrays of all processes, one after the other in rank order: shape
        ``(sum(counts), ...)``. Elsewhere, ``x``.

    """
    group = handles.communicator("gatherv", comm)
    counts = row_counts("gatherv", "counts", counts, group)
    check_rows("gatherv", "x", x, counts[group.rank])
    (result,) = gatherv_p(group, x, counts=counts, root=root_rank("gatherv", root, group))
    return result


def _transpose(cotangent: Any, x: Any, *, root: int, comm: int, **counts: Any) -> Any:
    part = scatterv.scatterv_p.bind(cotangent, **counts, root=root, comm=comm)
    return part if is_rank(root, comm) else part + cotangent


gatherv_p.def_linear(_transpose)
