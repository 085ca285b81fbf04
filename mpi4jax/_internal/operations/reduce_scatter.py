"""MPI_Reduce_scatter_block (MPI-4.1 §6.10.1)."""

from __future__ import annotations

from typing import Any

from ..arguments.types import Array, ArrayLike, Comm, Op
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import check_first_axis, like
from ._reductions import def_derivatives, reducer
from .primitive import Operation, named

operation = Operation(
    "reduce_scatter",
    result=lambda x, **_: like(x, x.shape[1:]),
    batch_axes=lambda **_: (1, 0),
)


@without_tokens
def reduce_scatter(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array:
    """Reduce an array over all processes, with a slice of the result on each process.

    Arguments:
        x: Array input. First axis must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction of ``x[rank]`` over all processes: shape ``x.shape[1:]``.

    """
    communicator = handles.communicator("reduce_scatter", comm)
    check_first_axis("reduce_scatter", x, communicator)
    return operation(
        communicator, x, op_number=handles.operator_number("reduce_scatter", op)
    )


def _transpose(
    cotangent: Any, x: Any, *, op_number: int, communicator: Communicator
) -> Any:
    return named("allgather").apply(cotangent, shared=False, communicator=communicator)


def _definition(op_number: int, result: Any, x: Any, *, communicator: Communicator) -> Any:
    return reducer(op_number)(named("alltoall").apply(x, communicator=communicator), axis=0)


def_derivatives(operation, _transpose, _definition)
