"""MPI_Reduce_scatter_block (MPI-4.1 §6.10.1)."""

from __future__ import annotations

from typing import Any, overload

from ..arguments.types import Array, ArrayLike, Comm, Op, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray
from ._arguments import check_first_axis, like
from ._calls import Call
from ._declaration import get_operation
from ._reductions import Reduction, reducer


class ReduceScatter(Reduction):
    name = "reduce_scatter"

    def written_aval(self, x: ShapedArray, **_: Any) -> ShapedArray:
        return like(x, x.shape[1:])

    def batch_axes(self, **_: Any) -> tuple[int, int]:
        return 1, 0

    def transpose(
        self, cotangent: Any, x: Any, *, op_number: int, communicator: Communicator
    ) -> Any:
        return get_operation("allgather").apply(
            cotangent, shared=False, communicator=communicator
        )

    def definition(
        self, op_number: int, result: Any, x: Any, *, communicator: Communicator
    ) -> Any:
        slices = get_operation("alltoall").apply(x, communicator=communicator)
        return reducer(op_number)(slices, axis=0)


operation = ReduceScatter()


def call(function: str, x: object, op: Op, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of reduce_scatter."""
    communicator = handles.communicator(function, comm)
    check_first_axis(function, x, communicator)
    op_number = handles.operator_number(function, op)
    return Call(function, operation, communicator, x, op_number=op_number)


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
