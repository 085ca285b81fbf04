"""MPI_Gatherv (MPI-4.1 §6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Counts, Integer, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import check_rows, known_root, like, refuse_uneven, row_counts
from ._calls import Call
from ._rooted import RootedOperation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class GatherV(RootedOperation):
    counts: tuple[int, ...]

    name = "gatherv"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray | None:
        return like(x, (sum(self.counts), *x.shape[1:])) if self.is_root else None

    @override
    def forwarded_operand(self) -> int | None:
        return None if self.is_root else 0

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1


def call(
    function: str,
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of gatherv."""
    communicator = handles.communicator(function, comm)
    refuse_uneven(function, communicator)
    counts = row_counts(function, "counts", counts, communicator.size)
    check_rows(function, "x", x, counts[communicator.rank])
    root = known_root(function, root, communicator)
    return Call(function, GatherV(communicator, root, counts), x)


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
