"""MPI_Allgather (MPI-4.1 §6.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import like
from ._calls import Call
from ._rules import as_primitive
from ._shared import SharedOperation


@as_primitive
@dataclass(frozen=True)
class AllGather(SharedOperation):
    name = "allgather"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (self.communicator.size, *x.shape))

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 0, 1

    @override
    def own_cotangent(self, cotangent: Array, *numbers: Array) -> Array:
        return cotangent[self.communicator.rank_in_program()]


def call(function: str, x: ArrayLike | T, *, comm: Comm = None) -> Call[Array | T]:
    """Prepare a call of `function`, a form of allgather."""
    communicator = handles.communicator(function, comm)
    return Call(function, AllGather(communicator), x)


@overload
def allgather(x: ArrayLike, *, comm: Comm = None) -> Array: ...
@overload
def allgather(x: T, *, comm: Comm = None) -> T: ...
def allgather(x: ArrayLike | T, *, comm: Comm = None, token: NotSet = NOTSET) -> Array | T:
    """Collect an array from every process, on every process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The arrays of all processes, stacked in rank order: shape ``(nproc, *x.shape)``.

    """
    raise_if_token_is_set(token, "allgather")
    return call("allgather", x, comm=comm).run()
