"""MPI_Allgather (MPI-4.1 §6.7)."""

from __future__ import annotations

from typing import Any

from ..arguments.dtypes import SUM
from ..arguments.types import Array, ArrayLike, Comm
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import like
from .primitive import Operation, SharedTranspose, named

operation = Operation(
    "allgather",
    result=lambda x, *, communicator, **_: like(x, (communicator.size, *x.shape)),
    batch_axes=lambda **_: (0, 1),
    not_lowered=("shared",),
)


@without_tokens
def allgather(x: ArrayLike, *, comm: Comm = None) -> Array:
    """Collect an array from every process, on every process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The arrays of all processes, stacked in rank order: shape ``(nproc, *x.shape)``.

    """
    communicator = handles.communicator("allgather", comm)
    return operation(communicator, x, shared=True)


own_slice = SharedTranspose(operation, lambda y, *, communicator, **_: y[communicator.rank])


def _transpose(cotangent: Any, x: Any, *, shared: bool, communicator: Communicator) -> Any:
    if shared:
        return own_slice(cotangent, shared=shared, communicator=communicator)
    return named("reduce_scatter").apply(
        cotangent, op_number=SUM, communicator=communicator
    )


operation.def_linear(_transpose)
