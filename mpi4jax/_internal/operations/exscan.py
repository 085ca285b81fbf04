"""MPI_Exscan (MPI-4.1 §6.11.2)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from mpi4jax._override import override

from ..arguments.checks import array
from ..arguments.dtypes import identity
from ..arguments.types import Array, ArrayLike, Comm, Op, PyTree, T
from ..layout.packing import Tree, is_tree
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ._calls import Call
from ._computed import choose
from ._reductions import Reduction, depend_on_all
from ._rules import as_primitive
from .allgather import AllGather


@as_primitive
@dataclass(frozen=True)
class ExScan(Reduction):
    """An exclusive scan.

    The second operand is the result of the first process, which MPI leaves undefined.
    """

    #: Whether ranks count from the last one down.
    reverse: bool = False

    name = "exscan"
    operands = ("x", "initial")
    in_place = True

    @property
    def is_first(self) -> bool | Array:
        first = self.communicator.size - 1 if self.reverse else 0
        return self.communicator.rank_in_program() == first

    @override
    def read_operands(self) -> int:
        return 1

    @override
    def forwarded_operand(self) -> int | None:
        return 1 if not self.is_completed and self.is_first else None

    @property
    @override
    def is_completed(self) -> bool:
        return self.communicator.is_on_mesh

    @override
    def complete(self, result: Array, *operands: Array) -> Array:
        _, initial = operands
        return choose(self.is_first, initial, result) if self.is_completed else result

    @override
    def definition(self, *operands: Array) -> Array:
        x, initial = operands
        gathered = AllGather(self.communicator, shared=False).apply(x)
        rank = self.communicator.rank_in_program()
        ranks = np.arange(self.communicator.size)
        is_before = ranks > rank if self.reverse else ranks < rank
        value = choose(self.is_first, initial, self.reduce_some(gathered, is_before))
        return depend_on_all(value, gathered)


# Compiled, as eager calls would spend most of their time on it.
@functools.partial(jax.jit, static_argnums=1)
def _neutral(tree: PyTree, op_number: int) -> PyTree:
    return jax.tree_util.tree_map(
        lambda x: jnp.full_like(x, identity(op_number, x.dtype)), tree
    )


def call(function: str, x: ArrayLike | T, op: Op, *, comm: Comm = None) -> Call[Array | T]:
    """Prepare a call of `function`, a form of exscan."""
    communicator = handles.communicator(function, comm)
    op_number = handles.operator_number(function, op)
    initial = x
    if communicator.is_on_mesh or communicator.rank == 0:
        tree = Tree("x", x).checked(function) if is_tree(x) else array(function, "x", x)
        initial = _neutral(tree, op_number)
    return Call(function, ExScan(communicator, op_number), x, initial)


@overload
def exscan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def exscan(x: T, op: Op, *, comm: Comm = None) -> T: ...
def exscan(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Reduce an array over the processes before this one.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction over the ranks below the rank of this process. On rank 0, where MPI
        leaves it undefined, the neutral element: 0 for
        :obj:`mpi4py.MPI.SUM`, 1 for ``PROD``, the lowest number for ``MAX``, and so on; 0
        for user-made operators.

    """
    raise_if_token_is_set(token, "exscan")
    return call("exscan", x, op, comm=comm).run()
