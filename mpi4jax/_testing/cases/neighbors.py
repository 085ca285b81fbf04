"""Cases of the neighborhood collectives, on graphs and grids."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._override import override

from .case import Array, Arrays, Case, Shape
from .ragged import split


class Topology:
    """A topology that is defined for any number of processes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def sources(self, rank: int) -> list[int]:
        """The processes that send to `rank`, in MPI's order."""
        raise NotImplementedError

    def destinations(self, rank: int) -> list[int]:
        """The processes that `rank` sends to, in MPI's order."""
        raise NotImplementedError

    def origins(self, rank: int) -> list[tuple[int, int] | None]:
        """The sender of each block that `rank` gets, and the block's index there."""
        raise NotImplementedError

    def make(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """Create a communicator with the topology."""
        raise NotImplementedError


class Graph(Topology):
    """Zero to two edges between any two processes, and from each to itself."""

    def _edges(self, sender: int, receiver: int) -> int:
        return (sender + 2 * receiver + 1) % 3

    @override
    def sources(self, rank: int) -> list[int]:
        return [p for p in range(self.size) for _ in range(self._edges(p, rank))]

    @override
    def destinations(self, rank: int) -> list[int]:
        ranks = range(self.size - 1, -1, -1)
        return [p for p in ranks for _ in range(self._edges(rank, p))]

    @override
    def origins(self, rank: int) -> list[tuple[int, int] | None]:
        sources = self.sources(rank)
        origins: list[tuple[int, int] | None] = []
        for index, source in enumerate(sources):
            first = self.destinations(source).index(rank)
            origins.append((source, first + sources[:index].count(source)))
        return origins

    @override
    def make(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        rank = comm.Get_rank()
        return comm.Create_dist_graph_adjacent(self.sources(rank), self.destinations(rank))


class Grid(Topology):
    """Two axes, the second of which is periodic. It may have one or two processes."""

    @property
    def sides(self) -> list[int]:
        return [int(side) for side in MPI.Compute_dims(self.size, 2)]

    @override
    def sources(self, rank: int) -> list[int]:
        rows, columns = self.sides
        row, column = divmod(rank, columns)
        return [
            rank - columns if row > 0 else MPI.PROC_NULL,
            rank + columns if row < rows - 1 else MPI.PROC_NULL,
            row * columns + (column - 1) % columns,
            row * columns + (column + 1) % columns,
        ]

    @override
    def destinations(self, rank: int) -> list[int]:
        return self.sources(rank)

    @override
    def origins(self, rank: int) -> list[tuple[int, int] | None]:
        # What comes from the one before went to the one behind.
        return [
            None if source == MPI.PROC_NULL else (source, block ^ 1)
            for block, source in enumerate(self.sources(rank))
        ]

    @override
    def make(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        return comm.Create_cart(self.sides, [False, True], reorder=False)


@functools.cache
def _topologies() -> int:
    """The keyval of a communicator's attribute with the topologies created from it."""

    def free(comm: MPI.Comm, keyval: int, comms: dict[type[Topology], MPI.Comm]) -> None:
        for topology in comms.values():
            topology.Free()

    return MPI.Comm.Create_keyval(delete_fn=free)


class NeighborCase(Case):
    """The base of the cases with neighbors, whose first call is collective."""

    kind: type[Topology] = Graph

    @property
    def topology(self) -> Topology:
        return self.kind(self.size)

    @property
    def neighborhood(self) -> MPI.Intracomm:
        """The communicator of the call, created once from the argument."""
        comm = MPI.COMM_WORLD if self.comm is None else self.comm
        comms: Any = comm.Get_attr(_topologies())
        if comms is None:
            comms = {}
            comm.Set_attr(_topologies(), comms)
        if self.kind not in comms:
            comms[self.kind] = self.topology.make(comm)
        neighborhood: MPI.Intracomm = comms[self.kind]
        return neighborhood

    @property
    def blocks_sent(self) -> int:
        return len(self.topology.destinations(self.rank))

    @property
    def origins(self) -> list[tuple[int, int] | None]:
        return self.topology.origins(self.rank)

    def rows_to(self, sender: int, block: int) -> int:
        """The rows in a block that a process sends, which may be zero."""
        return (sender + block + 1) % 3

    def rows_sent(self, sender: int) -> list[int]:
        blocks = range(len(self.topology.destinations(sender)))
        return [self.rows_to(sender, block) for block in blocks]


class NeighborAllgather(NeighborCase):
    """Each process gets the arrays of its neighbors, stacked."""

    operations = ("neighbor_allgather",)
    line = "Neighbor_allgather", "({sent} items)"

    @override
    def call(self, x: Any) -> Any:
        return mpi.neighbor_allgather(x, comm=self.neighborhood)

    @override
    def result(self, xs: Arrays) -> Array:
        missing = np.zeros_like(xs[self.rank])
        return np.stack([missing if o is None else xs[o[0]] for o in self.origins])


class NeighborAllgatherv(NeighborCase):
    """Each process gets the rows of its neighbors, concatenated."""

    operations = ("neighbor_allgatherv",)
    line = "Neighbor_allgatherv", "({sent} items)"

    @property
    def rows_received(self) -> list[int]:
        # A missing neighbor (PROC_NULL) stands for two rows.
        return [2 if o is None else self.counts[o[0]] for o in self.origins]

    @override
    def call(self, x: Any) -> Any:
        return mpi.neighbor_allgatherv(x, self.rows_received, comm=self.neighborhood)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.counts[self.rank], *block)

    @override
    def result(self, xs: Arrays) -> Array:
        x = xs[self.rank]
        missing = np.zeros((2, *x.shape[1:]), x.dtype)
        return np.concatenate([missing if o is None else xs[o[0]] for o in self.origins])


class NeighborAlltoall(NeighborCase):
    """Each process has a block for each neighbor, and gets one from each."""

    operations = ("neighbor_alltoall",)

    @override
    def call(self, x: Any) -> Any:
        return mpi.neighbor_alltoall(x, comm=self.neighborhood)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.blocks_sent, *block)

    @override
    def result(self, xs: Arrays) -> Array:
        missing = np.zeros_like(xs[self.rank][0])
        return np.stack([missing if o is None else xs[o[0]][o[1]] for o in self.origins])

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Neighbor_alltoall": f"({sent // self.blocks_sent} items)"}


class NeighborAlltoallv(NeighborCase):
    """Each process has some rows for each neighbor, and gets some from each."""

    operations = ("neighbor_alltoallv",)
    line = "Neighbor_alltoallv", "({sent} items sent, {received} items received)"

    @property
    def rows_received(self) -> list[int]:
        # A missing neighbor (PROC_NULL) stands for two rows.
        return [2 if origin is None else self.rows_to(*origin) for origin in self.origins]

    @override
    def call(self, x: Any) -> Any:
        return mpi.neighbor_alltoallv(
            x, self.rows_sent(self.rank), self.rows_received, comm=self.neighborhood
        )

    @override
    def shape(self, block: Shape) -> Shape:
        return (sum(self.rows_sent(self.rank)), *block)

    @override
    def result(self, xs: Arrays) -> Array:
        x = xs[self.rank]
        missing = np.zeros((2, *x.shape[1:]), x.dtype)
        parts = [split(x, self.rows_sent(sender)) for sender, x in enumerate(xs)]
        return np.concatenate(
            [missing if o is None else parts[o[0]][o[1]] for o in self.origins]
        )


class InGrid(NeighborCase):
    """A grid, where neighbors are missing, or two are one process."""

    variant = "grid"
    kind = Grid


class NeighborAllgatherInGrid(InGrid, NeighborAllgather):
    pass


class NeighborAllgathervInGrid(InGrid, NeighborAllgatherv):
    pass


class NeighborAlltoallInGrid(InGrid, NeighborAlltoall):
    pass


class NeighborAlltoallvInGrid(InGrid, NeighborAlltoallv):
    pass
