"""MPI_Reduce (MPI-4.1 §6.9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Op, Rank, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import like, root_rank
from ._calls import Call
from ._computed import split_computed
from ._reductions import Reduction, depend_on_all, reducer
from ._rooted import RootedOperation
from ._rules import as_primitive
from .gather import Gather


@as_primitive
@dataclass(frozen=True)
class Reduce(RootedOperation, Reduction):
    name = "reduce"
    in_place = True

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray | None:
        return like(x) if self.has_arrays_of_root else None

    @override
    def forwarded_operand(self) -> int | None:
        return None if self.has_arrays_of_root else 0

    @override
    def definition(self, *operands: Array) -> Array:
        gathered = Gather(self.communicator, self.root).apply(*operands)
        if self.is_uniform:
            arrays, numbers = self.split_operands(operands)
            value = reducer(self.op_number)(gathered, axis=0)
            return self.at_root(value, arrays[0], numbers)
        value = reducer(self.op_number)(gathered, axis=0) if self.is_root else gathered
        return depend_on_all(value, gathered)


def call(
    function: str, x: ArrayLike | T, op: Op, root: Rank, *, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of reduce."""
    communicator = handles.communicator(function, comm)
    op_number = handles.operator_number(function, op)
    (root,), ranks = split_computed(root_rank(function, root, communicator))
    return Call(function, Reduce(communicator, op_number, root), x, *ranks)


@overload
def reduce(x: ArrayLike, op: Op, root: Rank, *, comm: Comm = None) -> Array: ...
@overload
def reduce(x: T, op: Op, root: Rank, *, comm: Comm = None) -> T: ...
def reduce(
    x: ArrayLike | T, op: Op, root: Rank, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Reduce an array over all processes, with the result on one process.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduced array on root, ``x`` elsewhere.

    """
    raise_if_token_is_set(token, "reduce")
    return call("reduce", x, op, root, comm=comm).run()
