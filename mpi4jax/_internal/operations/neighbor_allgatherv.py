"""MPI_Neighbor_allgatherv (MPI-4.1 §8.6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import overload

import numpy as np

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Counts, T
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import ShapedArray
from ._arguments import (
    arrays_of,
    bytes_of,
    bytes_of_a_row,
    check_rows,
    like,
    padding,
    row_counts,
)
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
class NeighborAllGatherV(Operation):
    counts: tuple[int, ...]

    name = "neighbor_allgatherv"
    has_neighbors = True

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (sum(self.counts), *x.shape[1:]))

    @override
    def unwritten_rows(self) -> UnwrittenRows | None:
        sources, _ = neighbors_in(self.communicator)
        return unwritten_rows(self.communicator, sources, self.counts)

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def envelopes(self, *avals: ShapedArray) -> Envelopes:
        row = bytes_of_a_row(*avals)
        received = [rows * row for rows in self.counts]
        return envelopes(self.communicator, repeat(bytes_of(*avals)), received)


def call(
    function: str,
    x: ArrayLike | T,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of neighbor_allgatherv."""
    communicator, neighbors = neighborhood(function, comm)
    sources = neighbors.sources
    counts = row_counts(function, "counts", counts, len(sources), "neighbors")
    for source, count in zip(sources, counts, strict=True):
        # On a mesh, all processes have an array of this shape.
        if communicator.is_on_mesh or source.rank == communicator.rank:
            check_rows(function, "x", x, count)
    for path, leaf in arrays_of(function, "x", x):
        if np.ndim(leaf) == 0:
            raise ValueError(
                f"{function} got an array of shape () for argument `{path}`, expected one "
                "with rows"
            )
    rows = padding(function, "fill_value", fill_value, x, first_axis=1)
    prepared: Call[Array | T] = Call(function, NeighborAllGatherV(communicator, counts), x)
    return prepared.then(
        fill_blocks, rows, unwritten=unwritten_rows(communicator, sources, counts)
    )


@overload
def neighbor_allgatherv(
    x: ArrayLike, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array: ...
@overload
def neighbor_allgatherv(
    x: T, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> T: ...
def neighbor_allgatherv(
    x: ArrayLike | T,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T:
    """Send an array to every neighbor, and receive arrays of any sizes from all.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays. All processes must have the same shape
            apart from the first axis.
        counts (Sequence[int]): The size of the first axis on each neighbor that sends to
            this process. Where there is no process, as many rows are filled with
            ``fill_value``.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        The rows of the neighbors, one after the other: shape ``(sum(counts), ...)``.

    """
    raise_if_token_is_set(token, "neighbor_allgatherv")
    return call("neighbor_allgatherv", x, counts, fill_value=fill_value, comm=comm).run()
