"""MPI_Alltoall (MPI-4.1 §6.8)."""

from __future__ import annotations

from typing import Any

from ..arguments.types import Array, ArrayLike, Comm, T
from ..forms.token import without_tokens
from ..mpi import handles
from ._arguments import check_first_axis
from .primitive import Operation


class AllToAll(Operation):
    name = "alltoall"

    def batch_axes(self, **_: Any) -> tuple[int, int]:
        return 1, 1

    def transpose(self, cotangent: Any, x: Any, **params: Any) -> Any:
        return self.apply(cotangent, **params)


operation = AllToAll()


@without_tokens
def alltoall(x: ArrayLike | T, *, comm: Comm = None) -> Array | T:
    """Send a slice of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received slices, stacked in rank order.

    """
    communicator = handles.communicator("alltoall", comm)
    check_first_axis("alltoall", x, communicator)
    return operation(communicator, x)
