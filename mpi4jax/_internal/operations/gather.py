"""MPI_Gather (MPI-4.1 §6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Rank, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import like, root_rank
from ._calls import Call
from ._computed import split_computed
from ._rooted import RootedOperation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class Gather(RootedOperation):
    name = "gather"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray | None:
        if not self.has_arrays_of_root:
            return None
        return like(x, (self.communicator.size, *x.shape))

    @override
    def forwarded_operand(self) -> int | None:
        return None if self.has_arrays_of_root else 0

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 0, int(self.has_arrays_of_root)


def call(
    function: str, x: ArrayLike | T, root: Rank, *, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of gather."""
    communicator = handles.communicator(function, comm)
    (root,), ranks = split_computed(root_rank(function, root, communicator))
    return Call(function, Gather(communicator, root), x, *ranks)


@overload
def gather(x: ArrayLike, root: Rank, *, comm: Comm = None) -> Array: ...
@overload
def gather(x: T, root: Rank, *, comm: Comm = None) -> T: ...
def gather(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: NotSet = NOTSET
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
