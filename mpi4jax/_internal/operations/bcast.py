"""MPI_Bcast (MPI-4.1 §6.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Rank, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import like, root_rank
from ._calls import Call
from ._computed import split_computed
from ._rooted import RootedOperation
from ._rules import as_primitive
from ._shared import SharedOperation


@as_primitive
@dataclass(frozen=True)
class Bcast(RootedOperation, SharedOperation):
    name = "bcast"
    in_place = True

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray | None:
        return None if self.is_root else like(x)

    @override
    def aval_in_flight(self, *avals: ShapedArray) -> ShapedArray:
        x, *_ = avals
        return like(x)  # on root, too, from which MPI still reads it

    @override
    def forwarded_operand(self) -> int | None:
        return 0 if self.is_root else None

    @override
    def own_cotangent(self, cotangent: Array, *numbers: Array) -> Array:
        return self.at_root(cotangent, jnp.zeros_like(cotangent), numbers)


def call(
    function: str, x: ArrayLike | T, root: Rank, *, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of bcast."""
    communicator = handles.communicator(function, comm)
    (root,), ranks = split_computed(root_rank(function, root, communicator))
    return Call(function, Bcast(communicator, root), x, *ranks)


@overload
def bcast(x: ArrayLike, root: Rank, *, comm: Comm = None) -> Array: ...
@overload
def bcast(x: T, root: Rank, *, comm: Comm = None) -> T: ...
def bcast(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: NotSet = NOTSET
) -> Array | T:
    """Send an array from one process to all others.

    .. warning::

        Unlike mpi4py's bcast, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input, or a tree of them. Data is only read on the root process.
            On the others this determines the shape and dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received array (``x`` itself on the root process).

    """
    raise_if_token_is_set(token, "bcast")
    return call("bcast", x, root, comm=comm).run()
