"""MPI_Reduce (MPI-4.1 §6.9.1)."""

from __future__ import annotations

from typing import Any

from ..arguments.types import Array, ArrayLike, Comm, Integer, Op
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import like, root_rank
from ._reductions import def_derivatives, depend_on_all, reducer
from .primitive import Operation, named

operation = Operation(
    "reduce",
    result=lambda x, *, root, communicator, **_: (
        like(x) if communicator.rank == root else None
    ),
    kept=lambda *, root, communicator, **_: None if communicator.rank == root else 0,
    in_place=True,
)


@without_tokens
def reduce(x: ArrayLike, op: Op, root: Integer, *, comm: Comm = None) -> Array:
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
    communicator = handles.communicator("reduce", comm)
    return operation(
        communicator,
        x,
        op_number=handles.operator_number("reduce", op),
        root=root_rank("reduce", root, communicator),
    )


def _transpose(
    cotangent: Any, x: Any, *, op_number: int, root: int, communicator: Communicator
) -> Any:
    total = named("bcast").apply(
        cotangent, root=root, shared=False, communicator=communicator
    )
    return total if communicator.rank == root else total + cotangent


def _definition(
    op_number: int, result: Any, x: Any, *, root: int, communicator: Communicator
) -> Any:
    gathered = named("gather").apply(x, root=root, communicator=communicator)
    value = reducer(op_number)(gathered, axis=0) if communicator.rank == root else gathered
    return depend_on_all(value, gathered)


def_derivatives(operation, _transpose, _definition)
