"""A plan for fields in a `jax.shard_map`, whose program is equal on all processes.

All processes have as many messages as that with most neighbors, of as many rows as the
longest list, and the program gets ranks and lists as arrays. A rank may be MPI.PROC_NULL,
and a row none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from mpi4py import MPI

from ..arguments.types import Array, ArrayLike
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.meshes import axis_comm, check_program, names_of
from ..operations._arguments import PROC_NULL
from ..operations._computed import FIRST
from .discovery import Neighborhood
from .row_plan import RowPlan
from .rows import Pattern, RowList
from .setup_messages import private

T = TypeVar("T")

#: A row that no field has, beyond the last one.
_NONE = np.iinfo(np.int32).max


class _Static(NamedTuple):
    """The part of a plan that is equal on all processes: all but its arrays."""

    mesh: jax.sharding.Mesh
    names: tuple[Hashable, ...]
    pattern: Pattern
    #: How many rows each point has.
    block: int

    def spread(self, rows: np.ndarray[Any, Any]) -> Array:
        """The whole array of the rows of all processes."""
        sharding = NamedSharding(self.mesh, PartitionSpec(self.names))
        return jax.make_array_from_process_local_data(sharding, rows)


@jax.tree_util.register_pytree_node_class
class MeshPlan(RowPlan):
    """A plan for fields in a `shard_map`, which :meth:`Plan.on_mesh` makes.

    It is an argument of programs, a tree of arrays that are divided along the first axis.
    """

    _public_name = "unstructured.MeshPlan"

    def __init__(self, static: _Static, table: Array, ranks: Array, owned: Array) -> None:
        self._static = static
        self._pattern = static.pattern
        self._block = static.block
        #: The number of rows of a field on each process.
        self.size = static.pattern.size * static.block
        self._table = table
        self._ranks = (ranks,)
        #: Which rows a process owns: no ghosts, and none that fill up a field.
        self.owned = owned

    def tree_flatten(self) -> tuple[tuple[Array, ...], _Static]:
        return (self._table, *self._ranks, self.owned), self._static

    @classmethod
    def tree_unflatten(cls, static: _Static, arrays: Any) -> MeshPlan:
        return cls(static, *arrays)

    def __repr__(self) -> str:
        return f"<unstructured.MeshPlan: {len(self._pattern.sent)} neighbors at most>"

    def spread(self, fields: T) -> T:
        """Whole arrays of the rows of all processes, filled up with zeros.

        Arguments:
            fields: An array with the rows of this process, or a tree of them.

        """
        function = "unstructured.MeshPlan.spread"
        tree = Tree("fields", fields)
        leaves = [self._spread(function, *pair) for pair in tree.named_arrays(function)]
        return tree.with_leaves(leaves)

    def _spread(self, function: str, name: str, x: ArrayLike) -> Array:
        shape = np.shape(x)
        if not shape or shape[0] > self.size:
            raise ValueError(
                f"{function} got an array of shape {shape} for `{name}`, expected at most "
                f"{self.size} rows along its first axis"
            )
        rows = np.zeros((self.size, *shape[1:]), jnp.result_type(x))
        rows[: shape[0]] = x
        return self._static.spread(rows)

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator of the processes."""
        return axis_comm(self._static.mesh, self._static.names)

    def without_ghosts(self, fields: T) -> T:
        """Set the rows to zero that a process does not own. Fields keep their size.

        Arguments:
            fields: An array with the rows along its first axis, or a tree of arrays.

        """

        def own_rows(x: Array) -> Array:
            owned = self.owned.reshape(-1, *[1] * (x.ndim - 1))
            return jnp.where(owned, x, jnp.zeros((), x.dtype))

        return jax.tree_util.tree_map(own_rows, fields)

    def with_ghosts(self, fields: T) -> T:
        """Set the rows that :meth:`without_ghosts` sets to zero, by :meth:`exchange`."""
        return self.exchange(fields)

    def _communicator_of(self, function: str) -> Communicator:
        comm = self.comm
        if comm.Get_size() > 1:
            check_program(function, self._static.names)
        return handles.communicator(function, comm)


def on_mesh(
    neighborhood: Neighborhood,
    comm: MPI.Intracomm,
    block: int,
    mesh: jax.sharding.Mesh,
    names: str | Sequence[Hashable] | None,
) -> MeshPlan:
    """The plan of a neighborhood for a mesh, on whose axes the processes are.

    Each point has `block` rows.
    """
    names = names_of("unstructured.Plan.on_mesh", mesh, names)
    axes = axis_comm(mesh, names)
    if MPI.Comm.Compare(axes, comm) not in (MPI.IDENT, MPI.CONGRUENT):
        raise ValueError(
            f"unstructured.Plan.on_mesh got axes {names} of a mesh with other processes "
            "than the plan has, expected a plan with comm=mpi4jax.axis_comm(mesh, names)"
        )
    lists = [*neighborhood.sent, *neighborhood.received]
    own = [neighborhood.size, len(neighborhood.ranks), max(map(len, lists), default=0)]
    with private("unstructured.Plan.on_mesh", comm) as duplicate:
        size, count, length = (duplicate.allreduce(each, op=MPI.MAX) for each in own)
    table = np.full((2, count, length), _NONE, np.int32)
    for side, of_side in enumerate((neighborhood.sent, neighborhood.received)):
        for n, rows in enumerate(of_side):
            table[side, n, : len(rows)] = rows
    ranks = np.full(count, PROC_NULL, np.int32)
    ranks[: len(neighborhood.ranks)] = neighborhood.ranks
    owned = np.zeros(size, np.bool_)
    owned[: neighborhood.size] = neighborhood.owned
    sides = [
        tuple(
            RowList(FIRST + n, length, (side * count + n) * length, first=None)
            for n in range(count)
        )
        for side in range(2)
    ]
    pattern = Pattern(size, *sides)
    static = _Static(mesh, names, pattern, block)
    arrays = (table.reshape(-1), ranks, np.repeat(owned, block))
    return MeshPlan(static, *map(static.spread, arrays))
