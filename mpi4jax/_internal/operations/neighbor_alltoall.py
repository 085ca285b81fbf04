"""MPI_Neighbor_alltoall (MPI-4.1 §8.6.2)."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np

from ..arguments.checks import renamed_argument
from ..arguments.types import Array, ArrayLike, Comm
from ..forms.token import without_tokens
from ..mpi.handles import Communicator
from ..mpi.topology import proc_null_blocks
from ..xla.jax_compat import ShapedArray
from ._arguments import bytes_of_a_row, like, padding
from ._neighbors import envelopes, filled, neighborhood, neighbors_in
from .primitive import Operation


def _result(x: ShapedArray, *, communicator: Communicator, backwards: int) -> ShapedArray:
    sources, _ = neighbors_in(communicator, backwards=backwards)
    return like(x, (len(sources), *x.shape[1:]))


def _not_written(*, communicator: Communicator, backwards: int) -> Any:
    return proc_null_blocks(neighbors_in(communicator, backwards=backwards)[0])


operation = Operation(
    "neighbor_alltoall",
    result=_result,
    batch_axes=lambda **_: (1, 1),
    not_written=_not_written,
    envelopes=lambda x, **params: envelopes(
        sent=repeat(bytes_of_a_row(x)), received=repeat(bytes_of_a_row(x)), **params
    ),
)


@without_tokens
@renamed_argument("neighbor_alltoall", "edge", "fill_value")
def neighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array:
    """Send a slice of an array to every neighbor, and receive one from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send: a slice for each neighbor that this process sends to, with
            shape ``(outdegree, ...)``. All slices have the same shape, on all processes.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a slice. ``edge`` is its older name.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        The slices received from the neighbors that send to this process, with shape
        ``(indegree, ...)``.

    """
    communicator, neighbors = neighborhood("neighbor_alltoall", comm)
    number = len(neighbors.destinations)
    if np.ndim(x) == 0 or np.shape(x)[0] != number:
        raise ValueError(
            f"neighbor_alltoall got an array of shape {np.shape(x)} for argument `x`, "
            f"expected ({number}, ...), as this process sends to {number} neighbors"
        )
    fill_value = padding("neighbor_alltoall", "fill_value", fill_value, x, np.shape(x)[1:])
    result = operation(communicator, x, backwards=0)
    return filled(result, fill_value, proc_null_blocks(neighbors.sources))


# Each cotangent goes back along the edge on which the slice came.
operation.def_linear(
    lambda cotangent, x, *, backwards, communicator: operation.apply(
        cotangent, backwards=1 - backwards, communicator=communicator
    )
)
