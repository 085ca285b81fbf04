"""MPI_Neighbor_alltoall (MPI-4.1 §8.6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import overload

import numpy as np

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, T
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import ShapedArray
from ._arguments import arrays_of, bytes_of_a_row, like, padding
from ._calls import Call
from ._neighbors import (
    UnwrittenRows,
    envelopes,
    fill_blocks,
    neighborhood,
    neighbors_in,
    unwritten_rows,
)
from ._operation import Operation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class NeighborAllToAll(Operation):
    #: Whether blocks go from destinations to sources, as their cotangents do.
    backwards: bool = False

    name = "neighbor_alltoall"
    has_neighbors = True

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        sources, _ = neighbors_in(self.communicator, self.backwards)
        return like(x, (len(sources), *x.shape[1:]))

    @override
    def unwritten_rows(self) -> UnwrittenRows | None:
        sources, _ = neighbors_in(self.communicator, self.backwards)
        return unwritten_rows(self.communicator, sources)

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def envelopes(self, *avals: ShapedArray) -> Envelopes:
        block = bytes_of_a_row(*avals)
        return envelopes(self.communicator, repeat(block), repeat(block), self.backwards)


def call(
    function: str, x: ArrayLike | T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of neighbor_alltoall."""
    communicator, neighbors = neighborhood(function, comm)
    count = len(neighbors.destinations)
    for name, leaf in arrays_of(function, "x", x):
        if np.ndim(leaf) == 0 or np.shape(leaf)[0] != count:
            raise ValueError(
                f"{function} got an array of shape {np.shape(leaf)} for argument `{name}`, "
                f"expected ({count}, ...), as this process sends to {count} neighbors"
            )
    slices = padding(function, "fill_value", fill_value, x, first_axis=1)
    prepared: Call[Array | T] = Call(function, NeighborAllToAll(communicator), x)
    return prepared.then(
        fill_blocks, slices, unwritten=unwritten_rows(communicator, neighbors.sources)
    )


@overload
def neighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array: ...
@overload
def neighbor_alltoall(x: T, *, fill_value: ArrayLike = 0, comm: Comm = None) -> T: ...
def neighbor_alltoall(
    x: ArrayLike | T,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T:
    """Send a slice of an array to every neighbor, and receive one from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays: a slice for each neighbor that this
            process sends to, with shape ``(outdegree, ...)``. All slices have the same
            shape, on all processes.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a slice.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        The slices received from the neighbors that send to this process, with shape
        ``(indegree, ...)``.

    """
    raise_if_token_is_set(token, "neighbor_alltoall")
    return call("neighbor_alltoall", x, fill_value=fill_value, comm=comm).run()
