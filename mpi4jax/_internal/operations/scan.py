"""MPI_Scan (MPI-4.1 §6.11.1)."""

from __future__ import annotations

from typing import Any

from ..arguments.types import Array, ArrayLike, Comm, Op
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import like
from ._reductions import def_derivatives, depend_on_all, reducer
from .primitive import Operation, named

operation = Operation("scan", result=lambda x, **_: like(x), in_place=True)


@without_tokens
def scan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array:
    """Reduce an array over this process and those before it.

    Arguments:
        x: Array or scalar input to send.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction over the ranks from 0 to that of this process.

    """
    communicator = handles.communicator("scan", comm)
    return operation(
        communicator, x, op_number=handles.operator_number("scan", op), reverse=False
    )


def _transpose(
    cotangent: Any, x: Any, *, op_number: int, reverse: bool, communicator: Communicator
) -> Any:
    return operation.apply(
        cotangent, op_number=op_number, reverse=not reverse, communicator=communicator
    )


def _definition(
    op_number: int, result: Any, x: Any, *, reverse: bool, communicator: Communicator
) -> Any:
    gathered = named("allgather").apply(x, shared=False, communicator=communicator)
    rank = communicator.rank
    value = reducer(op_number)(gathered[rank:] if reverse else gathered[: rank + 1], axis=0)
    return depend_on_all(value, gathered)


def_derivatives(operation, _transpose, _definition)
