"""MPI_Scan (MPI-4.1 §6.11.1)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ._arguments import Array, like
from ._reductions import def_derivatives, depend_on_all, reducer
from .allgather import allgather_p

scan_p = Operation("scan", results=lambda x, **_: [like(x)], in_place=True)


def scan(x: Any, op: Any, *, comm: Any = None) -> Array:
    """Reduce an array over this process and those before it.

    Arguments:
        x: Array or scalar input to send.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction over the ranks from 0 to that of this process.

    """
    group = handles.communicator("scan", comm)
    (result,) = scan_p(group, x, op=handles.operator("scan", op), reverse=False)
    return result


def _transpose(cotangent: Any, x: Any, *, op: int, reverse: bool, comm: int) -> Any:
    return scan_p.bind(cotangent, op=op, reverse=not reverse, comm=comm)


def _definition(op: int, result: Any, x: Any, *, reverse: bool, comm: int) -> Any:
    gathered = allgather_p.bind(x, shared=False, comm=comm)
    rank = handles.communicator_at(comm).rank
    value = reducer(op)(gathered[rank:] if reverse else gathered[: rank + 1], axis=0)
    return depend_on_all(value, gathered)


def_derivatives(scan_p, _transpose, _definition)
