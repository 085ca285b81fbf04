"""MPI_Gather (MPI-4.1 §6.5)."""

from __future__ import annotations

from typing import Any, overload

from ..arguments.types import Array, ArrayLike, Comm, Integer, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray
from ._arguments import like, root_rank
from ._calls import Call
from ._declaration import get_operation
from .primitive import Operation


class Gather(Operation):
    name = "gather"

    def written_aval(
        self, x: ShapedArray, *, root: int, communicator: Communicator
    ) -> ShapedArray | None:
        if communicator.rank != root:
            return None
        return like(x, (communicator.size, *x.shape))

    def forwarded_operand(self, *, root: int, communicator: Communicator) -> int | None:
        return None if communicator.rank == root else 0

    def batch_axes(self, *, root: int, communicator: Communicator) -> tuple[int, int]:
        return 0, int(communicator.rank == root)

    def transpose(
        self, cotangent: Any, x: Any, *, root: int, communicator: Communicator
    ) -> Any:
        part = get_operation("scatter").apply(
            cotangent, root=root, communicator=communicator
        )
        return part if communicator.rank == root else part + cotangent


operation = Gather()


def call(function: str, x: object, root: Integer, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of gather."""
    communicator = handles.communicator(function, comm)
    root = root_rank(function, root, communicator)
    return Call(function, operation, communicator, x, root=root)


@overload
def gather(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def gather(x: T, root: Integer, *, comm: Comm = None) -> T: ...
def gather(
    x: ArrayLike | T, root: Integer, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Collect an array from every process, on one process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        On root, the arrays of all processes, stacked in rank order: shape
        ``(nproc, *x.shape)``. Elsewhere, ``x``.

    """
    raise_if_token_is_set(token, "gather")
    return call("gather", x, root, comm=comm).run()
