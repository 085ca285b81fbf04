"""MPI_Alltoall (MPI-4.1 §6.8)."""

from __future__ import annotations

from ..arguments.types import Array, ArrayLike, Comm
from ..forms.token import without_tokens
from ..mpi import handles
from ._arguments import check_first_axis, like
from .primitive import Operation

operation = Operation(
    "alltoall",
    result=lambda x, **_: like(x),
    batch_axes=lambda **_: (1, 1),
)


@without_tokens
def alltoall(x: ArrayLike, *, comm: Comm = None) -> Array:
    """Send a slice of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send. First axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received slices, stacked in rank order.

    """
    communicator = handles.communicator("alltoall", comm)
    check_first_axis("alltoall", x, communicator)
    return operation(communicator, x)


operation.def_linear(
    lambda cotangent, x, *, communicator: operation.apply(
        cotangent, communicator=communicator
    )
)
