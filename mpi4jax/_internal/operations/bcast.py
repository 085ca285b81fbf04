"""MPI_Bcast (MPI-4.1 §6.4)."""

from __future__ import annotations

from typing import Any, overload

import jax.numpy as jnp

from ..arguments.dtypes import SUM
from ..arguments.types import Array, ArrayLike, Comm, Integer, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.dependence import zeros_after
from ..xla.jax_compat import ShapedArray
from ._arguments import like, root_rank
from ._calls import Call
from ._declaration import get_operation
from ._shared import SharedOperation


class Bcast(SharedOperation):
    name = "bcast"
    in_place = True
    unlowered_params = ("shared",)

    def written_aval(
        self, x: ShapedArray, *, root: int, communicator: Communicator, **_: Any
    ) -> ShapedArray | None:
        return like(x) if communicator.rank != root else None

    def aval_in_flight(self, x: ShapedArray, **_: Any) -> ShapedArray:
        return like(x)  # on root, too, from which MPI still reads it

    def forwarded_operand(
        self, *, root: int, communicator: Communicator, **_: Any
    ) -> int | None:
        return 0 if communicator.rank == root else None

    def own_cotangent(
        self, cotangent: Any, *, root: int, communicator: Communicator, **_: Any
    ) -> Any:
        return cotangent if communicator.rank == root else jnp.zeros_like(cotangent)

    def transpose_unshared(
        self, cotangent: Any, x: Any, *, root: int, shared: bool, communicator: Communicator
    ) -> Any:
        total = get_operation("reduce").apply(
            cotangent, op_number=SUM, root=root, communicator=communicator
        )
        return total if communicator.rank == root else zeros_after(total)


operation = Bcast()


def call(function: str, x: object, root: Integer, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of bcast."""
    communicator = handles.communicator(function, comm)
    root = root_rank(function, root, communicator)
    return Call(function, operation, communicator, x, root=root, shared=True)


@overload
def bcast(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def bcast(x: T, root: Integer, *, comm: Comm = None) -> T: ...
def bcast(
    x: ArrayLike | T, root: Integer, *, comm: Comm = None, token: NotSet = NOTSET
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
