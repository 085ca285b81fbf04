"""MPI_Allreduce (MPI-4.1 §6.9.6)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .. import handles
from ..dtypes import OPERATORS, SUM
from ..operation import Operation, SharedTranspose
from ._arguments import Array, like
from ._reductions import def_derivatives, reducer
from .allgather import allgather_p

allreduce_p = Operation(
    "allreduce",
    results=lambda x, **_: [like(x)],
    in_place=True,
)


def allreduce(x: Any, op: Any, *, comm: Any = None) -> Array:
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
    group = handles.communicator("allreduce", comm)
    (result,) = allreduce_p(group, x, op=handles.operator("allreduce", op))
    return result


def _definition(op: int, result: Any, x: Any, *, comm: int) -> Any:
    if OPERATORS[op] == "PROD":
        return reducer(op)(allgather_p.bind(x, shared=True, comm=comm), axis=0)
    # The extremum is that of the processes that have it, the mean of theirs. This takes no
    # more memory than x does.
    has_it = x == result
    count = allreduce_p.bind(has_it.astype(jnp.int32), op=SUM, comm=comm)
    part = jnp.where(has_it, x, 0) / count.astype(x.dtype)
    return allreduce_p.bind(part, op=SUM, comm=comm)


def_derivatives(allreduce_p, SharedTranspose(allreduce_p, lambda y, **_: y), _definition)
