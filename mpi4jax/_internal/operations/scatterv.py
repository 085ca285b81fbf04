"""MPI_Scatterv (MPI-4.1 §6.6)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..jax_compat import ShapedArray
from ..operation import Operation
from . import gatherv
from ._arguments import (
    Array,
    check_rows,
    is_rank,
    like,
    root_rank,
    row_counts,
    zeros_after,
)


def _results(
    x: ShapedArray, *, counts: tuple[int, ...], root: int, comm: int
) -> list[ShapedArray]:
    return [like(x, (counts[handles.communicator_at(comm).rank], *x.shape[1:]))]


scatterv_p = Operation(
    "scatterv",
    results=_results,
    sent=lambda *, counts, root, comm: int(is_rank(root, comm)),
    batch_axes=lambda **_: (1, 1),
)


def scatterv(x: Any, counts: Any, root: Any, *, comm: Any = None) -> Array:
    """Send each process its part of an array of one process.

    .. warning::

       The expected shape of the first argument differs between the root process and
       the others.

    Arguments:
        x: On root, the parts for all processes, one after the other in rank order, with
           shape ``(sum(counts), ...)``. Elsewhere, an array with the shape and dtype of
           the result, ``(counts[rank], ...)``, whose data is not read.
        counts (Sequence[int]): The size of each process's part along the first axis.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received part.

    """
    group = handles.communicator("scatterv", comm)
    counts = row_counts("scatterv", "counts", counts, group)
    root = root_rank("scatterv", root, group)
    given = sum(counts) if group.rank == root else counts[group.rank]
    check_rows("scatterv", "x", x, given)
    (result,) = scatterv_p(group, x, counts=counts, root=root)
    return result


def _transpose(cotangent: Any, x: Any, *, root: int, comm: int, **counts: Any) -> Any:
    gathered = gatherv.gatherv_p.bind(cotangent, **counts, root=root, comm=comm)
    return gathered if is_rank(root, comm) else zeros_after(gathered)


scatterv_p.def_linear(_transpose)
