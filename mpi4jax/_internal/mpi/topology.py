"""The neighbors of a process in the topology of a communicator (MPI-4.1 §8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

Table: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Neighbor(NamedTuple):
    """End of an edge: the process there, and the tag of the messages along the edge.

    The tag is the same on both ends, and differs from the tags of all other edges between
    the two processes in this direction. So it tells apart neighbors that are one process.
    """

    rank: int
    tag: int

    @property
    def is_proc_null(self) -> bool:
        """Whether there is no process at this end, as beyond the boundary of a grid."""
        return self.rank == MPI.PROC_NULL


class Neighbors(NamedTuple):
    """The neighbors of a process, in the order of their blocks (MPI-4.1 §8.6)."""

    sources: tuple[Neighbor, ...]
    destinations: tuple[Neighbor, ...]
    #: Reason why the neighbors can't be used, empty if they can.
    problem: str = ""
    #: Dimensions of a grid, and whether each of them is periodic.
    dims: tuple[int, ...] = ()
    periods: tuple[bool, ...] = ()


def neighbors_of(comm: MPI.Intracomm) -> Neighbors | None:
    """The neighbors of this process, or None if the communicator has no topology."""
    find = {
        MPI.CART: lambda: _in_grid(MPI.Cartcomm(comm)),
        MPI.GRAPH: lambda: _in_graph(MPI.Graphcomm(comm)),
        MPI.DIST_GRAPH: lambda: _in_distributed_graph(MPI.Distgraphcomm(comm)),
    }.get(comm.Get_topology())
    return None if find is None else find()


def _in_grid(comm: MPI.Cartcomm) -> Neighbors:
    # For each axis, the lower neighbor and then the upper one. A message to the upper
    # neighbor arrives there from the lower one, so each tag is the number of the axis's
    # other block.
    dims, periods, _ = comm.Get_topo()
    ranks = [rank for axis in range(len(dims)) for rank in comm.Shift(axis, 1)]
    return Neighbors(
        dims=tuple(dims),
        periods=tuple(map(bool, periods)),
        sources=tuple(Neighbor(rank, block) for block, rank in enumerate(ranks)),
        destinations=tuple(Neighbor(rank, block ^ 1) for block, rank in enumerate(ranks)),
    )


def _in_distributed_graph(comm: MPI.Distgraphcomm) -> Neighbors:
    sources, destinations, _ = comm.Get_dist_neighbors()
    return Neighbors(_with_tags(sources), _with_tags(destinations))


def _in_graph(comm: MPI.Graphcomm) -> Neighbors:
    # MPI has one list of neighbors for sends and receives (MPI-4.1 §8.6), so a process has
    # to receive from each process to which it sends.
    index, edges = comm.Get_topo()
    starts = [0, *index]
    table = [Counter(edges[start:end]) for start, end in zip(starts, index, strict=False)]
    both = _with_tags(comm.Get_neighbors(comm.Get_rank()))
    for rank, neighbors in enumerate(table):
        for other, count in neighbors.items():
            if table[other][rank] != count:
                return Neighbors(
                    both,
                    both,
                    f"a graph that is not symmetric: process {other} is a neighbor of "
                    f"{rank} in {count} edges, and {rank} of {other} in "
                    f"{table[other][rank]}. "
                    "Make it with comm.Create_dist_graph_adjacent(sources, destinations)",
                )
    return Neighbors(both, both)


def _with_tags(ranks: Sequence[int]) -> tuple[Neighbor, ...]:
    """Neighbors with these ranks. The tags of edges to one process count from 0."""
    edges: Counter[int] = Counter()
    neighbors: list[Neighbor] = []
    for rank in ranks:
        neighbors.append(Neighbor(rank, edges[rank]))
        edges[rank] += 1
    return tuple(neighbors)


def ends_of_grid(neighbors: Neighbors) -> Table:
    """Table of whether the neighbor of each rank and block in a grid is ``PROC_NULL``."""
    dims, is_open = np.array(neighbors.dims), ~np.array(neighbors.periods, bool)
    coordinates = np.stack(np.unravel_index(np.arange(dims.prod()), neighbors.dims), 1)
    is_first, is_last = coordinates == 0, coordinates == dims - 1
    ends = np.stack([is_first & is_open, is_last & is_open], -1)
    return ends.reshape(len(coordinates), -1)


def proc_null_blocks(
    neighbors: Sequence[Neighbor], rows: Sequence[int] | None = None
) -> tuple[tuple[int, int], ...]:
    """The runs of rows that come from ``MPI.PROC_NULL``: first row and number of rows.

    Arguments:
        neighbors: The sources of the rows.
        rows: The number of rows of each source, one by default.

    """
    runs: list[tuple[int, int]] = []
    start = 0
    counts = [1] * len(neighbors) if rows is None else rows
    for neighbor, count in zip(neighbors, counts, strict=True):
        if neighbor.is_proc_null and count:
            if runs and sum(runs[-1]) == start:
                run_start, run_count = runs.pop()
                runs.append((run_start, run_count + count))
            else:
                runs.append((start, count))
        start += count
    return tuple(runs)
