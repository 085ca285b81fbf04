"""MPI_Reduce_scatter (MPI-4.1 §6.10.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Counts, Op, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import check_rows, like, refuse_uneven, row_counts
from ._calls import Call
from ._reductions import Reduction, reducer
from ._rules import as_primitive
from .alltoallv import AllToAllV


@as_primitive
@dataclass(frozen=True)
class ReduceScatterV(Reduction):
    counts: tuple[int, ...]

    name = "reduce_scatterv"

    @property
    def own_rows(self) -> int:
        return self.counts[self.communicator.rank]

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (self.own_rows, *x.shape[1:]))

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def definition(self, *operands: Array) -> Array:
        size, rows = self.communicator.size, self.own_rows
        received = AllToAllV(self.communicator, self.counts, (rows,) * size).apply(
            *operands
        )
        blocks = received.reshape(size, rows, *received.shape[1:])
        return reducer(self.op_number)(blocks, axis=0)


def call(
    function: str, x: ArrayLike | T, op: Op, counts: Counts, *, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of reduce_scatterv."""
    communicator = handles.communicator(function, comm)
    refuse_uneven(function, communicator)
    counts = row_counts(function, "counts", counts, communicator.size)
    check_rows(function, "x", x, sum(counts))
    op_number = handles.operator_number(function, op)
    return Call(function, ReduceScatterV(communicator, op_number, counts), x)


@overload
def reduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None
) -> Array: ...
@overload
def reduce_scatterv(x: T, op: Op, counts: Counts, *, comm: Comm = None) -> T: ...
def reduce_scatterv(
    x: ArrayLike | T, op: Op, counts: Counts, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Reduce an array over all processes, with some rows of the result on each process.

    This is ``MPI_Reduce_scatter``: the number of rows may differ from process to process.

    Arguments:
        x: Array input, or a tree of arrays: the rows for all processes, one after the other
            in rank order, with shape ``(sum(counts), ...)``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        counts (Sequence[int]): The number of rows for each process. It must be the same on
            all processes.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The rows of this process, reduced over all processes: shape ``(counts[rank], ...)``.

    """
    raise_if_token_is_set(token, "reduce_scatterv")
    return call("reduce_scatterv", x, op, counts, comm=comm).run()
