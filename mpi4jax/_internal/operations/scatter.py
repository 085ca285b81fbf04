"""MPI_Scatter (MPI-4.1 §6.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Rank, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import check_first_axis, like, root_rank
from ._calls import Call
from ._computed import split_computed
from ._rooted import RootedOperation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class Scatter(RootedOperation):
    name = "scatter"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, x.shape[1:] if self.has_arrays_of_root else x.shape)

    @override
    def read_operands(self) -> int:
        return int(self.has_arrays_of_root)

    @override
    def batch_axes(self) -> tuple[int, int]:
        return int(self.has_arrays_of_root), 0


def call(
    function: str, x: ArrayLike | T, root: Rank, *, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of scatter."""
    communicator = handles.communicator(function, comm)
    (root,), ranks = split_computed(root_rank(function, root, communicator))
    operation = Scatter(communicator, root)
    if operation.has_arrays_of_root:
        check_first_axis(function, x, communicator)
    return Call(function, operation, x, *ranks)


@overload
def scatter(x: ArrayLike, root: Rank, *, comm: Comm = None) -> Array: ...
@overload
def scatter(x: T, root: Rank, *, comm: Comm = None) -> T: ...
def scatter(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: NotSet = NOTSET
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
