"""MPI_Scan (MPI-4.1 §6.11.1)."""

from __future__ import annotations

from typing import Any, overload

from ..arguments.types import Array, ArrayLike, Comm, Op, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ._calls import Call
from ._declaration import get_operation
from ._reductions import Reduction, depend_on_all, reducer


class Scan(Reduction):
    """With `reverse`, ranks count from the last one down."""

    name = "scan"
    in_place = True

    def transpose(self, cotangent: Any, x: Any, *, reverse: bool, **params: Any) -> Any:
        return self.apply(cotangent, reverse=not reverse, **params)

    def definition(
        self,
        op_number: int,
        result: Any,
        x: Any,
        *,
        reverse: bool,
        communicator: Communicator,
    ) -> Any:
        gathered = get_operation("allgather").apply(
            x, shared=False, communicator=communicator
        )
        rank = communicator.rank
        arrays = gathered[rank:] if reverse else gathered[: rank + 1]
        return depend_on_all(reducer(op_number)(arrays, axis=0), gathered)


operation = Scan()


def call(function: str, x: object, op: Op, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of scan."""
    communicator = handles.communicator(function, comm)
    op_number = handles.operator_number(function, op)
    return Call(function, operation, communicator, x, op_number=op_number, reverse=False)


@overload
def scan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def scan(x: T, op: Op, *, comm: Comm = None) -> T: ...
def scan(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Reduce an array over this process and those before it.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction over the ranks from 0 to that of this process.

    """
    raise_if_token_is_set(token, "scan")
    return call("scan", x, op, comm=comm).run()
