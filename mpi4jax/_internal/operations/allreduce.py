"""MPI_Allreduce (MPI-4.1 §6.9.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import jax
import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.dtypes import OPERATORS, SUM
from ..arguments.types import Array, ArrayLike, Comm, Op, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ._calls import Call
from ._in_order import in_order
from ._reductions import Reduction, reducer
from ._rules import as_primitive
from ._shared import SharedOperation
from .allgather import AllGather


@as_primitive
@dataclass(frozen=True)
class AllReduce(Reduction, SharedOperation):
    name = "allreduce"
    in_place = True

    @override
    def own_cotangent(self, cotangent: Array, *numbers: Array) -> Array:
        return cotangent

    @override
    def definition(self, *operands: Array) -> Array:
        gathered = AllGather(self.communicator).apply(*operands)
        return reducer(self.op_number)(gathered, axis=0)

    @override
    def tangent(
        self, result: Array, primals: Sequence[Array], tangents: Sequence[Array]
    ) -> Array:
        if OPERATORS[self.op_number] == "PROD":
            return super().tangent(result, primals, tangents)
        # Of an extremum, the mean over the elements that attain it. This takes no more
        # memory than x does. Under jax.checkpoint x may be computed again and rounded
        # differently, while the result is saved: so x is saved, too.
        (x,) = in_order([jax.lax.stop_gradient(primals[0])])
        total = AllReduce(self.communicator, SUM)
        attains = x == result
        count = total.apply(attains.astype(jnp.int32))
        return total.apply(jnp.where(attains, tangents[0], 0) / count.astype(x.dtype))


def call(function: str, x: ArrayLike | T, op: Op, *, comm: Comm = None) -> Call[Array | T]:
    """Prepare a call of `function`, a form of allreduce."""
    communicator = handles.communicator(function, comm)
    operation = AllReduce(communicator, handles.operator_number(function, op))
    return Call(function, operation, x)


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
