"""MPI_Scatter (MPI-4.1 §6.6)."""

from __future__ import annotations

from typing import Any, overload

from ..arguments.types import Array, ArrayLike, Comm, Integer, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.dependence import zeros_after
from ..xla.jax_compat import ShapedArray
from ._arguments import check_first_axis, like, root_rank
from ._calls import Call
from ._declaration import get_operation
from .primitive import Operation


class Scatter(Operation):
    name = "scatter"

    def written_aval(
        self, x: ShapedArray, *, root: int, communicator: Communicator
    ) -> ShapedArray:
        return like(x, x.shape[communicator.rank == root :])

    def read_operands(self, *, root: int, communicator: Communicator) -> int:
        return int(communicator.rank == root)

    def batch_axes(self, *, root: int, communicator: Communicator) -> tuple[int, int]:
        return int(communicator.rank == root), 0

    def transpose(
        self, cotangent: Any, x: Any, *, root: int, communicator: Communicator
    ) -> Any:
        gathered = get_operation("gather").apply(
            cotangent, root=root, communicator=communicator
        )
        return gathered if communicator.rank == root else zeros_after(gathered)


operation = Scatter()


def call(function: str, x: object, root: Integer, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of scatter."""
    communicator = handles.communicator(function, comm)
    root = root_rank(function, root, communicator)
    if communicator.rank == root:
        check_first_axis(function, x, communicator)
    return Call(function, operation, communicator, x, root=root)


@overload
def scatter(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def scatter(x: T, root: Integer, *, comm: Comm = None) -> T: ...
def scatter(
    x: ArrayLike | T, root: Integer, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Send each process its slice of an array of one process.

    .. warning::

        Unlike mpi4py's scatter, this returns a *new* array with the received data.

    .. warning::

       The expected shape of the first argument differs between the root process and
       the others.

    Arguments:
        x: On root, the array to send, with shape ``(nproc, ...)``, or a tree of arrays.
           Elsewhere, an array with the shape and dtype of the result, or a tree of them,
           whose data is not read.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received slice.

    """
    raise_if_token_is_set(token, "scatter")
    return call("scatter", x, root, comm=comm).run()
