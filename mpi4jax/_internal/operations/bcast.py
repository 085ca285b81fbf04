"""MPI_Bcast (MPI-4.1 §6.4)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..arguments.dtypes import SUM
from ..arguments.types import Array, ArrayLike, Comm, Integer
from ..forms.token import without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import like, root_rank, zeros_after
from .primitive import Operation, SharedTranspose, named

operation = Operation(
    "bcast",
    result=lambda x, *, root, communicator, **_: (
        like(x) if communicator.rank != root else None
    ),
    kept=lambda *, root, communicator, **_: 0 if communicator.rank == root else None,
    in_place=True,
    not_lowered=("shared",),
)


@without_tokens
def bcast(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array:
    """Send an array from one process to all others.

    .. warning::

        Unlike mpi4py's bcast, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input. Data is only read on the root process. On the others
            this determines the shape and dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received array (``x`` itself on the root process).

    """
    communicator = handles.communicator("bcast", comm)
    root = root_rank("bcast", root, communicator)
    return operation(communicator, x, root=root, shared=True)


root_part = SharedTranspose(
    operation,
    lambda y, *, root, communicator, **_: (
        y if communicator.rank == root else jnp.zeros_like(y)
    ),
)


def _transpose(
    cotangent: Any, x: Any, *, root: int, shared: bool, communicator: Communicator
) -> Any:
    if shared:
        return root_part(cotangent, root=root, shared=shared, communicator=communicator)
    total = named("reduce").apply(
        cotangent, op_number=SUM, root=root, communicator=communicator
    )
    return total if communicator.rank == root else zeros_after(total)


operation.def_linear(_transpose)
