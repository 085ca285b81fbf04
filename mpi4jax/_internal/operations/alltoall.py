"""MPI_Alltoall (MPI-4.1 §6.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ._arguments import check_first_axis
from ._calls import Call
from ._operation import Operation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class AllToAll(Operation):
    name = "alltoall"

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1


def call(function: str, x: ArrayLike | T, *, comm: Comm = None) -> Call[Array | T]:
    """Prepare a call of `function`, a form of alltoall."""
    communicator = handles.communicator(function, comm)
    check_first_axis(function, x, communicator)
    return Call(function, AllToAll(communicator), x)


@overload
def alltoall(x: ArrayLike, *, comm: Comm = None) -> Array: ...
@overload
def alltoall(x: T, *, comm: Comm = None) -> T: ...
def alltoall(x: ArrayLike | T, *, comm: Comm = None, token: NotSet = NOTSET) -> Array | T:
    """Send a slice of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received slices, stacked in rank order.

    """
    raise_if_token_is_set(token, "alltoall")
    return call("alltoall", x, comm=comm).run()
