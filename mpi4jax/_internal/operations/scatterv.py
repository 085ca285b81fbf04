"""MPI_Scatterv (MPI-4.1 §6.6)."""

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
class ScatterV(RootedOperation):
    counts: tuple[int, ...]

    name = "scatterv"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (self.counts[self.communicator.rank], *x.shape[1:]))

    @override
    def read_operands(self) -> int:
        return int(self.is_root)

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
    """Prepare a call of `function`, a form of scatterv."""
    communicator = handles.communicator(function, comm)
    refuse_uneven(function, communicator)
    counts = row_counts(function, "counts", counts, communicator.size)
    root = known_root(function, root, communicator)
    rows = sum(counts) if communicator.rank == root else counts[communicator.rank]
    check_rows(function, "x", x, rows)
    return Call(function, ScatterV(communicator, root, counts), x)


@overload
def scatterv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None
) -> Array: ...
@overload
def scatterv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> T: ...
def scatterv(
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T:
    """Send each process its part of an array of one process.

    .. warning::

       The expected shape of the first argument differs between the root process and
       the others.

    Arguments:
        x: On root, the parts for all processes, one after the other in rank order, with
           shape ``(sum(counts), ...)``. Elsewhere, an array with the shape and dtype of
           the result, ``(counts[rank], ...)``, whose data is not read. Or a tree of arrays.
        counts (Sequence[int]): The size of each process's part along the first axis.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received part.

    """
    raise_if_token_is_set(token, "scatterv")
    return call("scatterv", x, counts, root, comm=comm).run()
