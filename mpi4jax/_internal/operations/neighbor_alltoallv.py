"""MPI_Neighbor_alltoallv (MPI-4.1 §8.6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Counts, T
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import ShapedArray
from ._arguments import bytes_of_a_row, check_rows, like, padding, row_counts
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
class NeighborAllToAllV(Operation):
    sendcounts: tuple[int, ...]
    recvcounts: tuple[int, ...]
    #: Whether rows go from destinations to sources, as their cotangents do.
    backwards: bool = False

    name = "neighbor_alltoallv"
    has_neighbors = True

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (sum(self.recvcounts), *x.shape[1:]))

    @override
    def unwritten_rows(self) -> UnwrittenRows | None:
        sources, _ = neighbors_in(self.communicator, self.backwards)
        return unwritten_rows(self.communicator, sources, self.recvcounts)

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def envelopes(self, *avals: ShapedArray) -> Envelopes:
        row = bytes_of_a_row(*avals)
        sent, received = (
            [rows * row for rows in counts] for counts in (self.sendcounts, self.recvcounts)
        )
        return envelopes(self.communicator, sent, received, self.backwards)


def call(
    function: str,
    x: ArrayLike | T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of neighbor_alltoallv."""
    communicator, neighbors = neighborhood(function, comm)
    sources, destinations = neighbors.sources, neighbors.destinations
    sendcounts = row_counts(
        function, "sendcounts", sendcounts, len(destinations), "neighbors"
    )
    recvcounts = row_counts(function, "recvcounts", recvcounts, len(sources), "neighbors")
    sent = dict(zip(destinations, sendcounts, strict=True))
    own_rank = None if communicator.is_on_mesh else communicator.rank
    for source, count in zip(sources, recvcounts, strict=True):
        if source.rank == own_rank and sent.get(source, count) != count:
            raise ValueError(
                f"{function} got {sent[source]} rows in `sendcounts` and {count} in "
                "`recvcounts` for an edge from this process to itself (rank "
                f"{own_rank}), expected the same number"
            )
    check_rows(function, "x", x, sum(sendcounts))
    rows = padding(function, "fill_value", fill_value, x, first_axis=1)
    operation = NeighborAllToAllV(communicator, sendcounts, recvcounts)
    prepared: Call[Array | T] = Call(function, operation, x)
    return prepared.then(
        fill_blocks, rows, unwritten=unwritten_rows(communicator, sources, recvcounts)
    )


@overload
def neighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Array: ...
@overload
def neighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> T: ...
def neighbor_alltoallv(
    x: ArrayLike | T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T:
    """Send a part of an array to every neighbor, and receive one from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays: the parts for the neighbors that this
            process sends to, one after the other, with shape ``(sum(sendcounts), ...)``.
        sendcounts (Sequence[int]): The size of the part for each of them, along the first
            axis.
        recvcounts (Sequence[int]): The size of the part that comes from each neighbor that
            sends to this process. It must match what that neighbor sends. Where there is no
            process, as many rows are filled with ``fill_value``.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        The received parts, one after the other: shape ``(sum(recvcounts), ...)``.

    """
    raise_if_token_is_set(token, "neighbor_alltoallv")
    return call(
        "neighbor_alltoallv", x, sendcounts, recvcounts, fill_value=fill_value, comm=comm
    ).run()
