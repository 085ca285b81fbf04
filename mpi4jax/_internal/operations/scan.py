"""MPI_Scan (MPI-4.1 §6.11.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Op, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ._calls import Call
from ._reductions import Reduction, depend_on_all
from ._rules import as_primitive
from .allgather import AllGather


@as_primitive
@dataclass(frozen=True)
class Scan(Reduction):
    #: Whether ranks count from the last one down.
    reverse: bool = False

    name = "scan"
    in_place = True

    @override
    def definition(self, *operands: Array) -> Array:
        gathered = AllGather(self.communicator, shared=False).apply(*operands)
        rank = self.communicator.rank_in_program()
        ranks = np.arange(self.communicator.size)
        is_reduced = ranks >= rank if self.reverse else ranks <= rank
        return depend_on_all(self.reduce_some(gathered, is_reduced), gathered)


def call(function: str, x: ArrayLike | T, op: Op, *, comm: Comm = None) -> Call[Array | T]:
    """Prepare a call of `function`, a form of scan."""
    communicator = handles.communicator(function, comm)
    op_number = handles.operator_number(function, op)
    return Call(function, Scan(communicator, op_number), x)


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
        The reduction over the ranks from 0 to the rank of this process.

    """
    raise_if_token_is_set(token, "scan")
    return call("scan", x, op, comm=comm).run()
