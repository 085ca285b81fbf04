"""MPI_Reduce (MPI-4.1 §6.9.1)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from . import bcast, gather
from ._arguments import Array, is_rank, like, root_rank
from ._reductions import def_derivatives, depend_on_all, reducer

reduce_p = Operation(
    "reduce",
    results=lambda x, *, op, root, comm: [like(x)] if is_rank(root, comm) else [],
    kept=lambda *, op, root, comm: None if is_rank(root, comm) else 0,
    in_place=True,
)


def reduce(x: Any, op: Any, root: Any, *, comm: Any = None) -> Array:
    """Reduce an array over all processes, with the result on one process.

    Arguments:
        x: Array or scalar input to send.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduced array on root, ``x`` elsewhere.

    """
    group = handles.communicator("reduce", comm)
    (result,) = reduce_p(
        group,
        x,
        op=handles.operator("reduce", op),
        root=root_rank("reduce", root, group),
    )
    return result


def _transpose(cotangent: Any, x: Any, *, op: int, root: int, comm: int) -> Any:
    total = bcast.bcast_p.bind(cotangent, root=root, shared=False, comm=comm)
    return total if is_rank(root, comm) else total + cotangent


def _definition(op: int, result: Any, x: Any, *, root: int, comm: int) -> Any:
    gathered = gather.gather_p.bind(x, root=root, comm=comm)
    value = reducer(op)(gathered, axis=0) if is_rank(root, comm) else gathered
    return depend_on_all(value, gathered)


def_derivatives(reduce_p, _transpose, _definition)
