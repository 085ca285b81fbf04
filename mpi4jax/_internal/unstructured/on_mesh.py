"""Rows of a plan on a mesh, whose program is equal on all processes.

All processes have as many messages as that with most neighbors, of as many rows as the
longest list, and the program gets ranks and lists as arrays. A rank may be MPI.PROC_NULL,
and a row none.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.types import Array
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.meshes import axis_comm, check_program
from ..operations._arguments import PROC_NULL
from ..operations._computed import FIRST_COMPUTED
from . import discovery
from .discovery import Neighborhood
from .on_ranks import rows_of_points
from .rows import Pattern, RowList
from .setup_messages import private

#: A row that no field has, beyond the last one.
_NONE = np.iinfo(np.int32).max


class Static(NamedTuple):
    """The part of a plan that is equal on all processes: all but its arrays."""

    mesh: jax.sharding.Mesh
    names: tuple[Hashable, ...]
    pattern: Pattern
    #: Number of rows of each point, of whole fields, and of own rows with padding.
    block: int
    total: int
    own_count: int

    def spread(self, rows: np.ndarray[Any, Any]) -> Array:
        """The whole array of the rows of all processes."""
        sharding = NamedSharding(self.mesh, PartitionSpec(self.names))
        whole: Array = jax.make_array_from_process_local_data(sharding, rows)
        return whole


class Arrays(NamedTuple):
    """The part of a plan that differs among processes, divided along the first axis."""

    #: Lists of rows, and the ranks of neighbors.
    table: Array
    ranks: Array
    #: Whether a process owns a row, which is no ghost and no padding.
    owned: Array
    #: Own rows, and their positions in whole fields.
    own_rows: Array
    positions: Array


class MeshRows:
    """Rows of the fields of all processes, which a program has as arrays."""

    is_on_mesh = True

    def __init__(
        self, static: Static, arrays: Arrays, neighborhood: Neighborhood | None
    ) -> None:
        self.static, self.arrays = static, arrays
        #: The points of this process and its neighbors, but not in a program.
        self.neighborhood = neighborhood
        self.pattern, self.block = static.pattern, static.block
        self.total, self.own_count = static.total, static.own_count
        self.size = static.pattern.size * static.block
        self.table, self.owned = arrays.table, arrays.owned
        self.ranks = (arrays.ranks,)

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator of the processes."""
        return axis_comm(self.static.mesh, self.static.names)

    def communicator(self, function: str) -> Communicator:
        """The communicator, for a program that calls `function`."""
        comm = self.comm
        if comm.Get_size() > 1:
            check_program(function, self.static.names)
        return handles.communicator(function, comm)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of own rows of each process, with padding."""
        return (self.own_count,) * self.comm.Get_size()

    @override
    def __repr__(self) -> str:
        return f"{self.size} rows, {len(self.pattern.sent)} neighbors at most, on a mesh"

    @property
    def positions(self) -> Array:
        """Positions of the own rows in whole fields, and others beyond them as padding."""
        return self.arrays.positions

    def own(self, x: Array, axis: int) -> Array:
        """The own rows of a field, padded with zeros."""
        at = x.at[(*(slice(None),) * (axis % x.ndim), self.arrays.own_rows)]
        return at.get(mode="fill", fill_value=0)

    def put(self, x: Array, axis: int) -> Array:
        """Own rows among zeros in place of the ghosts."""
        position = axis % x.ndim
        shape = [*x.shape[:position], self.size, *x.shape[position + 1 :]]
        at = jnp.zeros(shape, x.dtype).at[
            (*(slice(None),) * position, self.arrays.own_rows)
        ]
        return at.set(x, mode="drop", unique_indices=True)


def rows_on_mesh(
    neighborhood: Neighborhood,
    mesh: jax.sharding.Mesh,
    names: tuple[Hashable, ...],
    block: int,
) -> MeshRows:
    """The rows of a neighborhood on a mesh. All processes call this together."""
    comm = axis_comm(mesh, names)
    lists = [*neighborhood.sent, *neighborhood.received]
    own_points = np.flatnonzero(neighborhood.owned)
    own = [neighborhood.size, len(neighborhood.ranks), max(map(len, lists), default=0)]
    positions = discovery.positions(neighborhood, comm)
    with private("unstructured.Plan", comm) as duplicate:
        size, count, length = (duplicate.allreduce(each, op=MPI.MAX) for each in own)
    table = np.full((2, count, length), _NONE, np.int32)
    for side, of_side in enumerate((neighborhood.sent, neighborhood.received)):
        for n, rows in enumerate(of_side):
            table[side, n, : len(rows)] = rows
    ranks = np.full(count, PROC_NULL, np.int32)
    ranks[: len(neighborhood.ranks)] = neighborhood.ranks
    owned = np.zeros(size, np.bool_)
    owned[: neighborhood.size] = neighborhood.owned
    own_count = max(neighborhood.counts) * block
    own_rows, own_positions = (
        _padded(rows_of_points(points, block), own_count)
        for points in (own_points, positions)
    )
    sides = [
        tuple(
            RowList(FIRST_COMPUTED + n, length, (side * count + n) * length, first=None)
            for n in range(count)
        )
        for side in range(2)
    ]
    total = sum(neighborhood.counts) * block
    static = Static(mesh, names, Pattern(size, *sides), block, total, own_count)
    arrays = (table.reshape(-1), ranks, np.repeat(owned, block), own_rows, own_positions)
    return MeshRows(static, Arrays(*map(static.spread, arrays)), neighborhood)


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """A list of rows, filled up with other rows, which no field has."""
    padded = _NONE - np.arange(size, dtype=np.int32)
    padded[: len(rows)] = rows
    return padded
