"""Operations between neighbors: who these are, and the blocks that no process sends."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import jax

from ..arguments.types import Array, Comm, PyTree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.topology import Neighbor, Neighbors
from ..xla.call_sites import Envelope, Envelopes
from ._arguments import fill_leaves
from ._lowering import fill


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
    assert communicator.neighbors is not None
    sources, destinations, _ = communicator.neighbors
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
    # `sizes` may have no end: that of `repeat`, where all blocks have one size.
    pairs = zip(neighbors, sizes, strict=False)
    return tuple(Envelope(*neighbor, size) for neighbor, size in pairs)


_fill = functools.partial(jax.jit, static_argnums=2)(fill)


def fill_blocks(
    result: PyTree, padding: Sequence[Array | None], parts: tuple[tuple[int, int], ...]
) -> PyTree:
    """The result with the padding of each array in the parts that no process sends."""
    if not parts:
        return result
    return fill_leaves(lambda x, value: _fill(x, value, parts), result, padding)
