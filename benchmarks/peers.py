"""Exchanges of ghosts of unstructured meshes by hand, as in two public codes.

Rebuilt from the descriptions of tatva (smec-ethz/tatva, `ExchangePlan`) and of JAX-AMG
(jx-wang-s-group/JAX-AMG, `HaloPlan`), to compare their values and times with a plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

Ints = np.ndarray[Any, Any]


class Route(NamedTuple):
    """The values that travel to and from a neighbor, by their indices on this process."""

    rank: int
    #: Indices of the ghosts that the neighbor owns among the values of this process.
    ghosts: Ints
    #: Indices of the neighbor's ghosts among the values that this process owns.
    owned: Ints


class NeighborLoop:
    """tatva: blocking `sendrecv` with one neighbor after the other.

    Owned values have consecutive numbers by rank. The number of a ghost is found in an
    array of all points, to which each process contributes its own, by an Allreduce.

    Arguments:
        mpi: The functions of mpi4jax.
        ids: The ids of the local points, from 0 to `count`.
        owned: Which of them this process owns.
        count: The number of points of the whole mesh.
        comm: The communicator.

    """

    def __init__(
        self, mpi: Any, ids: Ints, owned: Ints, count: int, comm: MPI.Intracomm
    ) -> None:
        self._mpi, self._comm = mpi, comm
        self.owned_rows = np.flatnonzero(owned)
        self.first = comm.exscan(len(self.owned_rows)) or 0
        self.bounds = np.cumsum([0, *comm.allgather(len(self.owned_rows))])
        directory = np.full(count, -1)
        directory[ids[owned]] = self.first + np.arange(len(self.owned_rows))
        comm.Allreduce(MPI.IN_PLACE, directory, op=MPI.MAX)
        #: The consecutive numbers of all local points.
        self.numbers = directory[ids]
        self.size = len(ids)
        owners = np.searchsorted(self.bounds, self.numbers, side="right") - 1
        self._routes = self._find_routes(owners, self.numbers - self.bounds[owners])

    def _find_routes(self, owners: Ints, places: Ints) -> list[Route]:
        """The routes of values with these owners, and these places on their owners."""
        rank = self._comm.Get_rank()
        ranks = range(self._comm.Get_size())
        ghosts = [np.flatnonzero(owners == other) for other in ranks]
        requested = self._comm.alltoall([places[rows] for rows in ghosts])
        return [
            Route(other, ghosts[other], requested[other])
            for other in ranks
            if other != rank and (len(ghosts[other]) or len(requested[other]))
        ]

    def values(self, owned: jax.Array) -> jax.Array:
        """All local values, with ghosts, from the owned ones."""
        local = jnp.zeros(self.size, owned.dtype).at[self.owned_rows].set(owned)
        for route in self._routes:
            received = self._sendrecv(route.rank, owned[route.owned], len(route.ghosts))
            local = local.at[route.ghosts].set(received)
        return local

    def residuals(self, local: jax.Array) -> jax.Array:
        """The owned values, with the sums of all ghosts of them."""
        return self._summed(self._routes, local, local[self.owned_rows])

    def find_entries(self, rows: Ints, columns: Ints) -> EntryLoop:
        """The exchange that sums entries of a matrix between local points."""
        return EntryLoop(self, rows, columns)

    def _summed(
        self, routes: Sequence[Route], local: jax.Array, total: jax.Array
    ) -> jax.Array:
        for route in routes:
            received = self._sendrecv(route.rank, local[route.ghosts], len(route.owned))
            total = total.at[route.owned].add(received)
        return total

    def _sendrecv(self, rank: int, sent: jax.Array, count: int) -> jax.Array:
        buffer = jnp.zeros(count, sent.dtype)
        return self._mpi.sendrecv(sent, buffer, rank, rank, comm=self._comm)


class EntryLoop:
    """tatva: the entries of a sparse matrix, summed at the owners of their rows."""

    def __init__(self, loop: NeighborLoop, rows: Ints, columns: Ints) -> None:
        self._loop, comm = loop, loop._comm
        pairs = np.stack([loop.numbers[rows], loop.numbers[columns]], axis=1)
        owners = np.searchsorted(loop.bounds, pairs[:, 0], side="right") - 1
        ranks = range(comm.Get_size())
        local = [np.flatnonzero(owners == rank) for rank in ranks]
        received = comm.alltoall([pairs[entries] for entries in local])
        #: The consecutive numbers of the row and column of each entry owned here.
        self.pairs, places = np.unique(
            np.concatenate(received), axis=0, return_inverse=True
        )
        ends = np.cumsum([len(part) for part in received])
        owned = np.split(places.reshape(-1), ends[:-1])
        routes = [Route(rank, local[rank], owned[rank]) for rank in ranks]
        self._own = routes[comm.Get_rank()]
        self._routes = [
            route
            for route in routes
            if route is not self._own and (len(route.ghosts) or len(route.owned))
        ]

    def entries(self, local: jax.Array) -> jax.Array:
        """The owned entries, summed over all processes that have some."""
        total = jnp.zeros(len(self.pairs), local.dtype)
        total = total.at[self._own.owned].add(local[self._own.ghosts])
        return self._loop._summed(self._routes, local, total)


class PaddedAlltoall:
    """JAX-AMG: an `alltoall` of as many values for each process as the most of any pair.

    Arguments:
        mpi: The functions of mpi4jax.
        bounds: The first owned number of each process, and the end. Those of a process are
            consecutive.
        ghosts: The numbers of the ghosts of this process, in ascending order.
        comm: The communicator.

    """

    def __init__(self, mpi: Any, bounds: Ints, ghosts: Ints, comm: MPI.Intracomm) -> None:
        self._mpi, self._comm = mpi, comm
        self._ghost_count = len(ghosts)
        size, first = comm.Get_size(), bounds[comm.Get_rank()]
        owners = np.searchsorted(bounds, ghosts, side="right") - 1
        slots = [np.flatnonzero(owners == rank) for rank in range(size)]
        requested = comm.alltoall([ghosts[rows] for rows in slots])
        own_most = max(map(len, (*slots, *requested)))
        most = max(1, comm.allreduce(own_most, op=MPI.MAX))
        # What is padded is sent from the first row, and received behind all ghosts.
        self._sent = np.zeros((size, most), np.int32)
        self._slots = np.full((size, most), self._ghost_count, np.int32)
        for rank in range(size):
            self._sent[rank, : len(requested[rank])] = requested[rank] - first
            self._slots[rank, : len(slots[rank])] = slots[rank]

    def with_ghosts(self, owned: jax.Array) -> jax.Array:
        """The owned values, and the ghosts behind them."""
        received = self._mpi.alltoall(owned[self._sent], comm=self._comm)
        ghosts = jnp.zeros(self._ghost_count + 1, owned.dtype)
        ghosts = ghosts.at[self._slots.ravel()].set(received.ravel())
        return jnp.concatenate([owned, ghosts[: self._ghost_count]])


def update_in_place(
    mpi: Any, comm: MPI.Intracomm, lists: Sequence[tuple[int, Ints, Ints]]
) -> Callable[[jax.Array], jax.Array]:
    """The shortest loop by hand, for lists of the rows to send and to receive."""

    def update(x: jax.Array) -> jax.Array:
        for rank, sent, received in lists:
            ghosts = mpi.sendrecv(x[sent], x[received], rank, rank, comm=comm)
            x = x.at[received].set(ghosts)
        return x

    return update
