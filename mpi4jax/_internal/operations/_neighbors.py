"""Neighbors of a process, and the blocks of results that no neighbor sends."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, PyTree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.topology import Neighbor, Neighbors, ends_of_grid, proc_null_blocks
from ..xla.call_sites import Envelope, Envelopes
from ._arguments import fill_leaves


def neighborhood(function: str, comm: Comm) -> tuple[Communicator, Neighbors]:
    """A communicator that has a topology, and the neighbors of this process."""
    communicator = handles.communicator(function, comm)
    neighbors = communicator.neighbors
    if neighbors is None:
        raise ValueError(
            f"{function} got a communicator without a topology for argument `comm`, "
            "expected one on which processes have neighbors. Make it with "
            "comm.Create_cart(dims, periods), comm.Create_graph(index, edges) or "
            "comm.Create_dist_graph_adjacent(sources, destinations)"
        )
    if neighbors.problem:
        raise ValueError(
            f"{function} got a communicator for argument `comm` with {neighbors.problem}"
        )
    return communicator, neighbors


def neighbors_in(
    communicator: Communicator, backwards: bool = False
) -> tuple[Sequence[Neighbor], Sequence[Neighbor]]:
    """The sources and the destinations of this process's messages.

    Backwards, these are exchanged: cotangents go from destinations to sources.
    """
    # `neighborhood` refuses communicators without a topology.
    neighbors = communicator.neighbors
    assert neighbors is not None
    sources, destinations = neighbors.sources, neighbors.destinations
    return (destinations, sources) if backwards else (sources, destinations)


def envelopes(
    communicator: Communicator,
    sent: Iterable[int],
    received: Iterable[int],
    backwards: bool = False,
) -> Envelopes:
    """The messages of a call, from the bytes for each destination and source."""
    sources, destinations = neighbors_in(communicator, backwards)
    return Envelopes(_envelopes(destinations, sent), _envelopes(sources, received))


def _envelopes(neighbors: Sequence[Neighbor], sizes: Iterable[int]) -> tuple[Envelope, ...]:
    # `sizes` may have no end: it is a `repeat` if all blocks have one size.
    pairs = zip(neighbors, sizes, strict=False)
    return tuple(Envelope(*neighbor, size) for neighbor, size in pairs)


class UnwrittenRows(Protocol):
    """Rows of a result that no process sends, as the grid of processes ends there."""

    def fill(self, array: Array, value: ArrayLike) -> Array:
        """An array with a value in these rows."""


@dataclass(frozen=True)
class KnownRows(UnwrittenRows):
    """Unwritten rows of this process: the first row and the number of rows of each part."""

    parts: tuple[tuple[int, int], ...]

    @override
    def fill(self, array: Array, value: ArrayLike) -> Array:
        # XLA overwrites these and no more, where nothing else needs the array.
        value = jnp.asarray(value, array.dtype)
        for first, rows in self.parts:
            part = jnp.broadcast_to(value, (rows, *array.shape[1:]))
            array = jax.lax.dynamic_update_slice_in_dim(array, part, first, 0)
        return array


@dataclass(frozen=True)
class RowsOnMesh(UnwrittenRows):
    """Unwritten rows of a program on a mesh, which finds the grid's ends when it runs."""

    communicator: Communicator
    #: Number of rows that each neighbor sends.
    counts: tuple[int, ...]

    @override
    def fill(self, array: Array, value: ArrayLike) -> Array:
        assert self.communicator.neighbors is not None
        ends = np.repeat(ends_of_grid(self.communicator.neighbors), self.counts, axis=1)
        is_unwritten = jnp.asarray(ends)[self.communicator.rank_in_program()]
        is_unwritten = is_unwritten.reshape(-1, *(1 for _ in array.shape[1:]))
        return jnp.where(is_unwritten, jnp.asarray(value, array.dtype), array)


def unwritten_rows(
    communicator: Communicator,
    sources: Sequence[Neighbor],
    rows: Sequence[int] | None = None,
) -> UnwrittenRows | None:
    """The unwritten rows of a result with rows from these sources, None if there are none.

    Arguments:
        communicator: The communicator.
        sources: The sources of the rows.
        rows: Number of rows from each source, by default 1.

    """
    neighbors = communicator.neighbors
    if communicator.is_on_mesh and neighbors is not None and neighbors.dims:
        if all(neighbors.periods):
            return None
        counts = (1,) * len(sources) if rows is None else tuple(rows)
        return RowsOnMesh(communicator, counts)
    parts = proc_null_blocks(sources, rows)
    return KnownRows(parts) if parts else None


@functools.partial(jax.jit, static_argnums=2)
def _fill(array: Array, value: Array, unwritten: UnwrittenRows) -> Array:
    return unwritten.fill(array, value)


def fill_blocks(
    result: PyTree, padding: Sequence[Array | None], unwritten: UnwrittenRows | None
) -> PyTree:
    """The result with the padding of each array in the rows that no process sends."""
    if unwritten is None:
        return result
    return fill_leaves(lambda x, value: _fill(x, value, unwritten), result, padding)
