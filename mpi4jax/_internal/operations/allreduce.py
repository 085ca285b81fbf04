"""MPI_Allreduce (MPI-4.1 §6.9.6)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..arguments.dtypes import OPERATORS, SUM
from ..arguments.types import Array, ArrayLike, Comm, Op
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import like
from ._reductions import def_derivatives, reducer
from .primitive import Operation, SharedTranspose, named

operation = Operation(
    "allreduce",
    result=lambda x, **_: like(x),
    in_place=True,
)


@without_tokens
def allreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array:
    """Reduce an array over all processes, with the result on every process.

    .. note::

       Can be differentiated if ``op`` is :obj:`mpi4py.MPI.SUM`, ``PROD``, ``MAX`` or
       ``MIN``.

    Arguments:
        x: Array or scalar input.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduced array.

    """
    communicator = handles.communicator("allreduce", comm)
    return operation(communicator, x, op_number=handles.operator_number("allreduce", op))


def _definition(op_number: int, result: Any, x: Any, *, communicator: Communicator) -> Any:
    if OPERATORS[op_number] == "PROD":
        return reducer(op_number)(
            named("allgather").apply(x, shared=True, communicator=communicator), axis=0
        )
    # The extremum is that of the processes that have it, the mean of theirs. This takes no
    # more memory than x does.
    has_it = x == result
    count = operation.apply(
        has_it.astype(jnp.int32), op_number=SUM, communicator=communicator
    )
    part = jnp.where(has_it, x, 0) / count.astype(x.dtype)
    return operation.apply(part, op_number=SUM, communicator=communicator)


def_derivatives(operation, SharedTranspose(operation, lambda y, **_: y), _definition)
