"""MPI_Reduce_scatter_block (MPI-4.1 §6.10.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Op, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import check_first_axis, like
from ._calls import Call
from ._reductions import Reduction, reducer
from ._rules import as_primitive
from .alltoall import AllToAll


@as_primitive
@dataclass(frozen=True)
class ReduceScatter(Reduction):
    name = "reduce_scatter"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, x.shape[1:])

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 0

    @override
    def definition(self, *operands: Array) -> Array:
        slices = AllToAll(self.communicator).apply(*operands)
        return reducer(self.op_number)(slices, axis=0)


def call(function: str, x: ArrayLike | T, op: Op, *, comm: Comm = None) -> Call[Array | T]:
    """Prepare a call of `function`, a form of reduce_scatter."""
    communicator = handles.communicator(function, comm)
    check_first_axis(function, x, communicator)
    op_number = handles.operator_number(function, op)
    return Call(function, ReduceScatter(communicator, op_number), x)


@overload
def reduce_scatter(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def reduce_scatter(x: T, op: Op, *, comm: Comm = None) -> T: ...
def reduce_scatter(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Reduce an array over all processes, with a slice of the result on each process.

    This is ``MPI_Reduce_scatter_block``: all slices have one shape.

    Arguments:
        x: Array input, or a tree of arrays. First axis must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction of ``x[rank]`` over all processes: shape ``x.shape[1:]``.

    """
    raise_if_token_is_set(token, "reduce_scatter")
    return call("reduce_scatter", x, op, comm=comm).run()
