"""MPI_Gatherv (MPI-4.1 §6.5)."""

from __future__ import annotations

from typing import Any, overload

from ..arguments.types import Array, ArrayLike, Comm, Counts, Integer, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray
from ._arguments import check_rows, like, root_rank, row_counts
from ._calls import Call
from ._declaration import get_operation
from .primitive import Operation


class GatherV(Operation):
    name = "gatherv"

    def written_aval(
        self,
        x: ShapedArray,
        *,
        counts: tuple[int, ...],
        root: int,
        communicator: Communicator,
    ) -> ShapedArray | None:
        if communicator.rank != root:
            return None
        return like(x, (sum(counts), *x.shape[1:]))

    def forwarded_operand(
        self, *, root: int, communicator: Communicator, **_: Any
    ) -> int | None:
        return None if communicator.rank == root else 0

    def batch_axes(self, **_: Any) -> tuple[int, int]:
        return 1, 1

    def transpose(
        self,
        cotangent: Any,
        x: Any,
        *,
        root: int,
        communicator: Communicator,
        **counts: Any,
    ) -> Any:
        part = get_operation("scatterv").apply(
            cotangent, **counts, root=root, communicator=communicator
        )
        return part if communicator.rank == root else part + cotangent


operation = GatherV()


def call(
    function: str,
    x: object,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
) -> Call:
    """Prepare a call of `function`, a form of gatherv."""
    communicator = handles.communicator(function, comm)
    counts = row_counts(function, "counts", counts, communicator.size)
    check_rows(function, "x", x, counts[communicator.rank])
    root = root_rank(function, root, communicator)
    return Call(function, operation, communicator, x, counts=counts, root=root)


@overload
def gatherv(x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def gatherv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> T: ...
def gatherv(
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T:
    """Collect arrays of unequal length from all processes, on one process.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size
            ``counts[rank]``; the others, and the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        On root, the arrays of all processes, one after the other in rank order: shape
        ``(sum(counts), ...)``. Elsewhere, ``x``.

    """
    raise_if_token_is_set(token, "gatherv")
    return call("gatherv", x, counts, root, comm=comm).run()
