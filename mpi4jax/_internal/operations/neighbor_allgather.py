"""MPI_Neighbor_allgather (MPI-4.1 §8.6.1)."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..arguments.checks import renamed_argument
from ..arguments.types import Array, ArrayLike, Comm
from ..forms.token import without_tokens
from ..mpi.handles import Communicator
from ..mpi.topology import proc_null_blocks
from ._arguments import bytes_of, like, padding
from ._neighbors import envelopes, filled, neighborhood, neighbors_in
from .primitive import Operation, named

operation = Operation(
    "neighbor_allgather",
    result=lambda x, *, communicator: like(
        x, (len(neighbors_in(communicator)[0]), *x.shape)
    ),
    batch_axes=lambda **_: (0, 1),
    not_written=lambda *, communicator: proc_null_blocks(neighbors_in(communicator)[0]),
    envelopes=lambda x, *, communicator: envelopes(
        communicator, repeat(bytes_of(x)), repeat(bytes_of(x))
    ),
)


@without_tokens
@renamed_argument("neighbor_allgather", "edge", "fill_value")
def neighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array:
    """Send an array to every neighbor, and receive those of the neighbors.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like ``x``. ``edge`` is its older name.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        The arrays of the neighbors that send to this process, with shape
        ``(indegree, *x.shape)``.

    """
    communicator, neighbors = neighborhood("neighbor_allgather", comm)
    fill_value = padding("neighbor_allgather", "fill_value", fill_value, x, np.shape(x))
    result = operation(communicator, x)
    return filled(result, fill_value, proc_null_blocks(neighbors.sources))


def _transpose(cotangent: Any, x: Any, *, communicator: Communicator) -> Any:
    # Each neighbor has a cotangent of its own for what it was sent.
    cotangents = named("neighbor_alltoall").apply(
        cotangent, backwards=1, communicator=communicator
    )
    return jnp.sum(cotangents, axis=0, dtype=cotangent.dtype)


operation.def_linear(_transpose)
