"""MPI_Bcast (MPI-4.1 §6.4)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .. import handles
from ..dtypes import SUM
from ..operation import Operation, SharedTranspose
from . import reduce
from ._arguments import Array, is_rank, like, root_rank, zeros_after

bcast_p = Operation(
    "bcast",
    results=lambda x, *, root, comm, **_: [] if is_rank(root, comm) else [like(x)],
    kept=lambda *, root, comm, **_: 0 if is_rank(root, comm) else None,
    in_place=True,
    traced=("shared",),
)


def bcast(x: Any, root: Any, *, comm: Any = None) -> Array:
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
    group = handles.communicator("bcast", comm)
    root = root_rank("bcast", root, group)
    (result,) = bcast_p(group, x, root=root, shared=True)
    return result


root_part = SharedTranspose(
    bcast_p, lambda y, *, root, comm, **_: y if is_rank(root, comm) else jnp.zeros_like(y)
)


def _transpose(cotangent: Any, x: Any, *, root: int, shared: bool, comm: int) -> Any:
    if shared:
        return root_part(cotangent, root=root, shared=shared, comm=comm)
    total = reduce.reduce_p.bind(cotangent, op=SUM, root=root, comm=comm)
    return total if is_rank(root, comm) else zeros_after(total)


bcast_p.def_linear(_transpose)
