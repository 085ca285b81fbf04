"""MPI_Reduce (MPI-4.1 §6.9.1)."""

from __future__ import annotations

from typing import Any, overload

from ..arguments.types import Array, ArrayLike, Comm, Integer, Op, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray
from ._arguments import like, root_rank
from ._calls import Call
from ._declaration import get_operation
from ._reductions import Reduction, depend_on_all, reducer


class Reduce(Reduction):
    name = "reduce"
    in_place = True

    def written_aval(
        self, x: ShapedArray, *, root: int, communicator: Communicator, **_: Any
    ) -> ShapedArray | None:
        return like(x) if communicator.rank == root else None

    def forwarded_operand(
        self, *, root: int, communicator: Communicator, **_: Any
    ) -> int | None:
        return None if communicator.rank == root else 0

    def transpose(
        self,
        cotangent: Any,
        x: Any,
        *,
        op_number: int,
        root: int,
        communicator: Communicator,
    ) -> Any:
        total = get_operation("bcast").apply(
            cotangent, root=root, shared=False, communicator=communicator
        )
        return total if communicator.rank == root else total + cotangent

    def definition(
        self, op_number: int, result: Any, x: Any, *, root: int, communicator: Communicator
    ) -> Any:
        gathered = get_operation("gather").apply(x, root=root, communicator=communicator)
        is_root = communicator.rank == root
        value = reducer(op_number)(gathered, axis=0) if is_root else gathered
        return depend_on_all(value, gathered)


operation = Reduce()


def call(function: str, x: object, op: Op, root: Integer, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of reduce."""
    communicator = handles.communicator(function, comm)
    op_number = handles.operator_number(function, op)
    root = root_rank(function, root, communicator)
    return Call(function, operation, communicator, x, op_number=op_number, root=root)


@overload
def reduce(x: ArrayLike, op: Op, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def reduce(x: T, op: Op, root: Integer, *, comm: Comm = None) -> T: ...
def reduce(
    x: ArrayLike | T, op: Op, root: Integer, *, comm: Comm = None, token: NotSet = NOTSET
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
