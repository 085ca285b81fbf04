"""MPI_Exscan (MPI-4.1 §6.11.2)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .. import handles
from ..dtypes import identity
from ..operation import Operation
from ._arguments import Array, is_rank, like
from ._reductions import def_derivatives, depend_on_all, reducer
from .allgather import allgather_p


def _is_first(reverse: bool, comm: int) -> bool:
    first = handles.communicator_at(comm).size - 1 if reverse else 0
    return is_rank(first, comm)


exscan_p = Operation(
    "exscan",
    operands=("x", "initial"),
    results=lambda x, initial, **_: [like(x)],
    sent=lambda **_: 1,
    # MPI leaves the result of the first process undefined.
    kept=lambda *, op, reverse, comm: 1 if _is_first(reverse, comm) else None,
    in_place=True,
)


# Compiled, as eager calls would spend most of their time on it.
@functools.partial(jax.jit, static_argnums=1)
def _reduced_nothing(x: Array, op: int) -> Array:
    return jnp.full_like(x, identity(op, x.dtype))


def exscan(x: Any, op: Any, *, comm: Any = None) -> Array:
    """Reduce an array over the processes before this one.

    Arguments:
        x: Array or scalar input to send.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction over the ranks from 0 to the one before that of this process. On
        rank 0, where MPI leaves it undefined, what a reduction of nothing gives: 0 for
        :obj:`mpi4py.MPI.SUM`, 1 for ``PROD``, the lowest number for ``MAX``, and so on; 0
        for user-made operators.

    """
    group = handles.communicator("exscan", comm)
    op = handles.operator("exscan", op)
    initial = _reduced_nothing(x, op) if group.rank == 0 else x
    (result,) = exscan_p(group, x, initial, op=op, reverse=False)
    return result


def _transpose(
    cotangent: Any, x: Any, initial: Any, *, op: int, reverse: bool, comm: int
) -> Any:
    nothing = jnp.zeros_like(cotangent)
    result = exscan_p.bind(cotangent, nothing, op=op, reverse=not reverse, comm=comm)
    return result, cotangent if _is_first(reverse, comm) else nothing


def _definition(
    op: int, result: Any, x: Any, initial: Any, *, reverse: bool, comm: int
) -> Any:
    gathered = allgather_p.bind(x, shared=False, comm=comm)
    rank = handles.communicator_at(comm).rank
    before = gathered[rank + 1 :] if reverse else gathered[:rank]
    value = initial if _is_first(reverse, comm) else reducer(op)(before, axis=0)
    return depend_on_all(value, gathered)


def_derivatives(exscan_p, _transpose, _definition)
