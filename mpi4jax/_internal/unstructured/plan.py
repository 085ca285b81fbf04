"""The plan of an exchange by index lists: it fills the ghost rows of a process."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from ..arguments.checks import integer
from ..arguments.types import Array, ArrayLike, Comm, Integer, PyTree
from ..ghosts import exchange_ghosts
from ..mpi import handles
from ..mpi.handles import unpack_hashable
from ..operations._arguments import known_root
from ..operations._eager import on_own_devices, run_named
from . import discovery
from .on_mesh import MeshPlan, on_mesh
from .row_plan import NAME, RowPlan
from .rows import first_row, pattern_of
from .whole import GatherCall, ScatterCall

T = TypeVar("T")


class Plan(RowPlan):
    """How processes exchange the rows of fields that they share.

    Each process has some points of an unstructured mesh, and a row for each in all fields.
    A process owns some of its rows. The others are *ghosts*: copies of rows that other
    processes own. Make a plan by :meth:`from_global` or :meth:`from_neighbors`, once.
    """

    _public_name = "unstructured.Plan"

    def __init__(
        self, neighborhood: discovery.Neighborhood, comm: MPI.Intracomm, block: int = 1
    ) -> None:
        self._neighborhood = neighborhood
        self._block = block
        #: The communicator of the processes.
        self.comm = comm
        self._communicator = handles.communicator("unstructured.Plan", comm)
        #: The number of rows of a field on this process.
        self.size = neighborhood.size * block
        #: The ranks that this process sends rows to or receives rows from.
        self.neighbors = neighborhood.ranks
        #: Which rows this process owns.
        self.owned = np.repeat(neighborhood.owned, block)
        self._pattern, rows = pattern_of(
            neighborhood.size, neighborhood.ranks, neighborhood.sent, neighborhood.received
        )
        # A plan that is made while a program is traced may outlive the trace.
        with jax.ensure_compile_time_eval():
            self._table = jnp.asarray(rows)

    @classmethod
    def from_global(
        cls,
        global_ids: ArrayLike,
        owned: ArrayLike | None = None,
        *,
        comm: Comm = None,
    ) -> Plan:
        """Find the neighbors from the ids of points. All processes call this together.

        Arguments:
            global_ids: The id of each point of this process: integers, in any order.
            owned: Which of these points it owns, as booleans. Each point has one owner
                (defaults to the lowest rank that has the point).
            comm (mpi4py.MPI.Comm): The communicator of the processes (defaults to a clone
                of :obj:`COMM_WORLD`).

        """
        own_comm = _comm_of("from_global", comm)
        return cls(discovery.from_global(global_ids, owned, own_comm), own_comm)

    @classmethod
    def from_neighbors(
        cls,
        neighbors: Mapping[int, tuple[ArrayLike, ArrayLike]],
        size: Integer,
        *,
        comm: Comm = None,
    ) -> Plan:
        """Make a plan of known lists of rows. All processes call this together.

        Arguments:
            neighbors: For the rank of each neighbor, the rows that are sent to it, and
                those that are received from it, in the order in which the other one sends
                them.
            size: The number of rows of this process.
            comm (mpi4py.MPI.Comm): The communicator of the processes (defaults to a clone
                of :obj:`COMM_WORLD`).

        """
        own_comm = _comm_of("from_neighbors", comm)
        return cls(discovery.from_neighbors(neighbors, size, own_comm), own_comm)

    def blocked(self, k: Integer) -> Plan:
        """The plan of fields with `k` unknowns a point, one behind the other.

        Such a field has `k` times as many rows.
        """
        count = integer("unstructured.Plan.blocked", "k", k)
        if count < 1:
            raise ValueError(
                f"unstructured.Plan.blocked got {count} for argument `k`, expected a "
                "positive number of unknowns"
            )
        self._communicator_of("unstructured.Plan.blocked")
        return Plan(self._neighborhood, self.comm, self._block * count)

    def __repr__(self) -> str:
        owned = int(self.owned.sum())
        return (
            f"<unstructured.Plan: {owned} own rows, {self.size - owned} ghosts, "
            f"{len(self.neighbors)} neighbors>"
        )

    @property
    def owned_rows(self) -> np.ndarray:
        """The rows that this process owns."""
        return np.flatnonzero(self.owned)

    @property
    def ghost_rows(self) -> np.ndarray:
        """The rows that other processes own."""
        return np.flatnonzero(~self.owned)

    @functools.cached_property
    def interior_rows(self) -> np.ndarray:
        """The own rows that no other process has.

        If points have neighbors on both sides or on none, and the ghosts are those next to
        own points, these are the own points that are next to no ghost.
        """
        is_interior = self.owned.copy()
        for rows in self._neighborhood.sent:
            is_interior.reshape(-1, self._block)[rows] = False
        return np.flatnonzero(is_interior)

    @on_own_devices
    def without_ghosts(self, fields: T, *, axis: int = 0) -> T:
        """The own rows of all fields, without ghosts.

        Arguments:
            fields: An array, or a tree of arrays.
            axis: The axis of all arrays along which the rows are.

        """
        leaves, structure = self._checked("without_ghosts", fields, axis, self.size)
        return structure.unflatten(x[_index(x, self._own, axis)] for x in leaves)

    @on_own_devices
    def with_ghosts(self, fields: T, *, axis: int = 0) -> T:
        """Put own rows where they are in fields with ghosts, and fill these.

        Arguments:
            fields: An array, or a tree of arrays, without ghosts.
            axis: The axis of all arrays along which the rows are.

        """
        return self._with_ghosts("with_ghosts", fields, axis)

    def _with_ghosts(self, function: str, fields: T, axis: int) -> T:
        own_count = self._row_counts[self._communicator.rank]
        leaves, structure = self._checked(function, fields, axis, own_count)
        if own_count < self.size:
            leaves = [self._spread(x, axis) for x in leaves]
        filled = self._fields(function, structure.unflatten(leaves), axis)
        return self._run(f"{NAME}.{function}", filled, exchange_ghosts)

    def _spread(self, x: Array, axis: int) -> Array:
        """Own rows among zeros in place of the ghosts."""
        position = axis % x.ndim
        shape = [*x.shape[:position], self.size, *x.shape[position + 1 :]]
        result = jnp.zeros(shape, x.dtype)
        if isinstance(self._own, slice):
            # Without own rows, too, the result has to depend on x, for the transpose.
            start = self._own.start
            return jax.lax.dynamic_update_slice_in_dim(result, x, start, position)
        # JAX transposes a scatter to rows that it knows to differ.
        return result.at[_index(x, self._own, axis)].set(x, unique_indices=True)

    @on_own_devices
    def gather(self, fields: T, *, root: Integer | None = None) -> T | None:
        """Join the own rows of all processes.

        They are in the order of the points' ids. Without ids, they are in the order of
        ranks and rows.

        Arguments:
            fields: An array, or a tree of arrays, with the rows along the first axis.
            root (int): The one process that gets them, if not all do.

        Returns:
            The whole fields, or None on a process that does not get them.

        """
        function = "unstructured.Plan.gather"
        communicator = self._communicator_of(function)
        root = self._known_root("gather", root)
        leaves, structure = self._checked("gather", fields, 0, self.size)
        rows = [] if isinstance(self._own, slice) else [self._own]
        first = self._own.start if isinstance(self._own, slice) else None
        call = GatherCall(communicator, self._row_counts, root, first)
        whole_fields = run_named(function, call, [leaves, self._positions, *rows])
        if root is not None and root != communicator.rank:
            return None
        return structure.unflatten(whole_fields or [])

    @on_own_devices
    def scatter(self, fields: T, *, root: Integer | None = None) -> T:
        """The rows of this process, from whole fields in the order of :meth:`gather`.

        Arguments:
            fields: An array of all points, or a tree of them, on all processes.
            root (int): The one process that has them, if not all do. The others pass arrays
                of the same shapes and dtypes, whose values are not used.

        """
        function = "unstructured.Plan.scatter"
        communicator = self._communicator_of(function)
        root = self._known_root("scatter", root)
        counts = self._row_counts
        leaves, structure = self._checked("scatter", fields, 0, sum(counts))
        call = ScatterCall(communicator, counts, root)
        own = run_named(function, call, [leaves, self._positions]) or []
        return self._with_ghosts("scatter", structure.unflatten(own), 0)

    def _known_root(self, function: str, root: Integer | None) -> int | None:
        if root is None:
            return None
        return known_root(f"unstructured.Plan.{function}", root, self._communicator)

    @functools.cached_property
    def _own(self) -> np.ndarray | slice:
        """The own rows as an index, a slice if they follow each other."""
        rows = self.owned_rows
        first = first_row(rows) if len(rows) else 0
        return rows if first is None else slice(first, first + len(rows))

    @property
    def _row_counts(self) -> tuple[int, ...]:
        """The number of own rows of each process."""
        return tuple(count * self._block for count in self._neighborhood.counts)

    @functools.cached_property
    def _positions(self) -> Array:
        """Where the own rows are in whole fields."""
        positions = discovery.positions(self._neighborhood, self.comm)
        with jax.ensure_compile_time_eval():
            return jnp.asarray(self._rows_of_points(positions), np.int32)

    def renumber(self) -> np.ndarray:
        """New ids of the rows of this process. All processes call this together.

        Each process has consecutive ids for its own rows, in their order, and those of the
        next rank follow.
        """
        self._communicator_of("unstructured.Plan.renumber")
        return self._rows_of_points(discovery.renumbered(self._neighborhood, self.comm))

    def _rows_of_points(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers of the rows of points that have these numbers."""
        rows = numbers[:, None] * self._block + np.arange(self._block)
        return rows.reshape(-1)

    def describe(self, fields: PyTree = None) -> str:
        """A text about the neighbors of this process, and the balance of all.

        Arguments:
            fields: Fields whose messages are described, too.

        """
        leaves, _ = self._checked("describe", fields, 0, self.size)
        nbytes = sum(x.nbytes for x in leaves) * self._block // max(self.size, 1)
        counts = self._neighborhood.counts
        mean = max(sum(counts) / len(counts), 1)
        lines = [
            f"rank {self._communicator.rank} of {self._communicator.size}: "
            f"{len(self.owned_rows)} own rows, {len(self.ghost_rows)} ghosts",
            f"own points of all ranks: {min(counts)} to {max(counts)}, "
            f"{max(counts) / mean:.2f} of the mean",
        ]
        for rank, *lists in zip(
            self._neighborhood.ranks,
            self._neighborhood.sent,
            self._neighborhood.received,
            strict=True,
        ):
            sent, received = (
                f"{len(rows)} points" + f" ({len(rows) * nbytes} bytes)" * bool(leaves)
                for rows in lists
            )
            lines.append(f"  rank {rank}: {sent} to it, {received} from it")
        return "\n".join(lines)

    def on_mesh(
        self, mesh: jax.sharding.Mesh, names: str | Sequence[Hashable] | None = None
    ) -> MeshPlan:
        """The plan for fields in a :func:`jax.shard_map`. All processes call this together.

        Arguments:
            mesh: The mesh, with one device for each process of the plan.
            names (str or Sequence[str]): Its axes, in the order of the plan's ranks
                (defaults to all).

        Returns:
            A plan that is passed to programs as an argument, divided along these axes. Its
            fields have as many rows on each process as that with most has.

        """
        self._communicator_of("unstructured.Plan.on_mesh")
        return on_mesh(self._neighborhood, self.comm, self._block, mesh, names)


def _index(x: Array, rows: np.ndarray | slice, axis: int) -> tuple[np.ndarray | slice, ...]:
    """The index of rows along an axis."""
    return (*(slice(None),) * (axis % x.ndim), rows)


def _comm_of(function: str, comm: Comm) -> MPI.Intracomm:
    """The communicator of a plan."""
    handles.communicator(f"unstructured.Plan.{function}", comm)  # it can be used
    return handles.get_default_comm() if comm is None else unpack_hashable(comm)
