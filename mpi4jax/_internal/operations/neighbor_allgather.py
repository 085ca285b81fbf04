"""MPI_Neighbor_allgather (MPI-4.1 §8.6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, T
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import ShapedArray
from ._arguments import bytes_of, like, padding
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
class NeighborAllGather(Operation):
    name = "neighbor_allgather"
    has_neighbors = True

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        sources, _ = neighbors_in(self.communicator)
        return like(x, (len(sources), *x.shape))

    @override
    def unwritten_rows(self) -> UnwrittenRows | None:
        sources, _ = neighbors_in(self.communicator)
        return unwritten_rows(self.communicator, sources)

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 0, 1

    @override
    def envelopes(self, *avals: ShapedArray) -> Envelopes:
        size = bytes_of(*avals)
        return envelopes(self.communicator, repeat(size), repeat(size))


def call(
    function: str, x: ArrayLike | T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of neighbor_allgather."""
    communicator, neighbors = neighborhood(function, comm)
    blocks = padding(function, "fill_value", fill_value, x)
    prepared: Call[Array | T] = Call(function, NeighborAllGather(communicator), x)
    return prepared.then(
        fill_blocks, blocks, unwritten=unwritten_rows(communicator, neighbors.sources)
    )


@overload
def neighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array: ...
@overload
def neighbor_allgather(x: T, *, fill_value: ArrayLike = 0, comm: Comm = None) -> T: ...
def neighbor_allgather(
    x: ArrayLike | T,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T:
    """Send an array to every neighbor, and receive an array from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like ``x``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        The arrays of the neighbors that send to this process, with shape
        ``(indegree, *x.shape)``.

    """
    raise_if_token_is_set(token, "neighbor_allgather")
    return call("neighbor_allgather", x, fill_value=fill_value, comm=comm).run()
