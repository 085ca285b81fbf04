"""MPI_Allreduce (MPI-4.1 §6.9.6)."""

from __future__ import annotations

from typing import Any, overload

import jax.numpy as jnp

from ..arguments.dtypes import OPERATORS, SUM
from ..arguments.types import Array, ArrayLike, Comm, Op, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ._calls import Call
from ._declaration import get_operation
from ._reductions import Reduction, reducer
from ._shared import SharedOperation


class AllReduce(Reduction, SharedOperation):
    name = "allreduce"
    in_place = True

    def own_cotangent(self, cotangent: Any, **_: Any) -> Any:
        return cotangent

    def definition(
        self, op_number: int, result: Any, x: Any, *, communicator: Communicator
    ) -> Any:
        if OPERATORS[op_number] == "PROD":
            gathered = get_operation("allgather").apply(
                x, shared=True, communicator=communicator
            )
            return reducer(op_number)(gathered, axis=0)
        # The extremum is the mean of the elements that attain it. This takes no more memory
        # than x does.
        attains = x == result
        count = self.apply(
            attains.astype(jnp.int32), op_number=SUM, communicator=communicator
        )
        part = jnp.where(attains, x, 0) / count.astype(x.dtype)
        return self.apply(part, op_number=SUM, communicator=communicator)


operation = AllReduce()


def call(function: str, x: object, op: Op, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of allreduce."""
    communicator = handles.communicator(function, comm)
    op_number = handles.operator_number(function, op)
    return Call(function, operation, communicator, x, op_number=op_number)


@overload
def allreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def allreduce(x: T, op: Op, *, comm: Comm = None) -> T: ...
def allreduce(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Reduce an array over all processes, with the result on every process.

    .. note::

       Can be differentiated if ``op`` is :obj:`mpi4py.MPI.SUM`, ``PROD``, ``MAX`` or
       ``MIN``.

    Arguments:
        x: Array or scalar input, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduced array.

    """
    raise_if_token_is_set(token, "allreduce")
    return call("allreduce", x, op, comm=comm).run()
