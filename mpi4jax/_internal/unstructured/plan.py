"""The plan of an exchange by index lists: it fills the ghost rows of a process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.checks import integer
from ..arguments.types import Array, ArrayLike, Comm, Integer, Op, PyTree
from ..ghosts import Fields, GhostPlan, accumulate_ghosts, exchange_ghosts
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator, unpack_hashable
from ..mpi.meshes import axis_comm, names_of
from ..nonblocking.requests import Request
from ..operations._eager import on_own_devices
from ..whole import Leaf, WholePlan
from . import discovery
from .discovery import Neighborhood
from .on_mesh import Arrays, MeshRows, Static, rows_on_mesh
from .on_ranks import RankRows, rows_of_points
from .rows import RowGhosts
from .whole import GatherCall, RowDivision, ScatterCall

T = TypeVar("T")
R = TypeVar("R")

#: The name of plans in errors and reports.
NAME = "unstructured.Plan"


@jax.tree_util.register_pytree_node_class
class Plan(GhostPlan, WholePlan[RowDivision]):
    """How processes exchange the rows of fields that they share.

    Each process has some points of an unstructured mesh, and a row for each in all fields.
    A process owns some of its rows. The others are *ghosts*: copies of rows that other
    processes own. Make a plan by :meth:`from_global` or :meth:`from_neighbors`, once.

    A plan on a mesh of JAX's (``comm=mesh``) is for a :func:`jax.shard_map`. It is an
    argument of the program: a tree of arrays that are divided along the first axis. As the
    program is equal on all processes, all have as many rows as the process with most has,
    own rows as well as all rows: the last ones are padding.
    """

    _public_name = NAME
    _gather_call = GatherCall
    _scatter_call = ScatterCall

    def __init__(self, rows: RankRows | MeshRows) -> None:
        self._rows = rows
        #: The number of rows of a field on this process.
        self.size = rows.size

    @classmethod
    def from_global(
        cls,
        global_ids: ArrayLike,
        owned: ArrayLike | None = None,
        *,
        comm: Comm | jax.sharding.Mesh = None,
        names: str | Sequence[Hashable] | None = None,
    ) -> Plan:
        """Find the neighbors from the ids of points. All processes call this together.

        Arguments:
            global_ids: The id of each point of this process: integers, in any order.
            owned: Which of these points it owns, as booleans. Each point has one owner
                (defaults to the lowest rank that has the point).
            comm (mpi4py.MPI.Comm or jax.sharding.Mesh): The communicator of the processes
                (defaults to a clone of :obj:`COMM_WORLD`), or a mesh, for fields in a
                :func:`jax.shard_map` over it.
            names (str or Sequence[str]): Of a mesh, the axes along which fields are divided
                (defaults to all).

        """
        place = _place("from_global", comm, names)
        return cls(_rows_of(discovery.from_global(global_ids, owned, place[0]), *place))

    @classmethod
    def from_neighbors(
        cls,
        neighbors: Mapping[int, tuple[ArrayLike, ArrayLike]],
        size: Integer,
        *,
        comm: Comm | jax.sharding.Mesh = None,
        names: str | Sequence[Hashable] | None = None,
    ) -> Plan:
        """Make a plan of known lists of rows. All processes call this together.

        Arguments:
            neighbors: For the rank of each neighbor, the rows that are sent to it, and
                those that are received from it, in the order in which the other one sends
                them.
            size: The number of rows of this process.
            comm, names: As for :meth:`from_global`.

        """
        place = _place("from_neighbors", comm, names)
        return cls(_rows_of(discovery.from_neighbors(neighbors, size, place[0]), *place))

    def tree_flatten(self) -> tuple[Sequence[Array], Hashable]:
        """The arrays of a plan on a mesh, which are arguments of its program."""
        if isinstance(self._rows, MeshRows):
            return self._rows.arrays, self._rows.static
        return (), _Itself(self)

    @classmethod
    def tree_unflatten(cls, static: Hashable, arrays: Any) -> Plan:
        """The plan in a program."""
        if isinstance(static, _Itself):
            return static.plan
        assert isinstance(static, Static)
        return cls(MeshRows(static, Arrays(*arrays), neighborhood=None))

    @override
    def __repr__(self) -> str:
        return f"<{NAME}: {self._rows}>"

    @property
    @override
    def _is_on_mesh(self) -> bool:
        return self._rows.is_on_mesh

    @property
    @override
    def comm(self) -> MPI.Intracomm:
        """The communicator of the processes."""
        return self._rows.comm

    @property
    def owned(self) -> np.ndarray | Array:
        """Mask of the rows that a process owns."""
        return self._rows.owned

    @property
    def neighbors(self) -> tuple[int, ...]:
        """The ranks that this process sends rows to or receives rows from."""
        return self._neighborhood("neighbors").ranks

    @property
    def owned_rows(self) -> np.ndarray:
        """The rows that this process owns."""
        return np.flatnonzero(self._own_mask("owned_rows"))

    @property
    def ghost_rows(self) -> np.ndarray:
        """The rows that other processes own."""
        return np.flatnonzero(~self._own_mask("ghost_rows"))

    @functools.cached_property
    def interior_rows(self) -> np.ndarray:
        """The own rows that no other process has.

        If points have neighbors on both sides or on none, and the ghosts are those next to
        own points, these are the own points that are next to no ghost.
        """
        is_interior = self._own_mask("interior_rows")
        for rows in self._neighborhood("interior_rows").sent:
            is_interior.reshape(-1, self._rows.block)[rows] = False
        return np.flatnonzero(is_interior)

    def _own_mask(self, function: str) -> np.ndarray:
        """Mask of the rows that this process owns, without padding."""
        return np.repeat(self._neighborhood(function).owned, self._rows.block)

    def _neighborhood(self, function: str) -> Neighborhood:
        """The points of this process, which a program on a mesh does not know."""
        neighborhood = self._rows.neighborhood
        if neighborhood is None:
            raise ValueError(
                f"{NAME}.{function} was used in a program on a mesh, which is equal on all "
                "processes, expected it outside of the program"
            )
        return neighborhood

    def blocked(self, k: Integer) -> Plan:
        """The plan of fields with `k` unknowns a point, one behind the other.

        Such a field has `k` times as many rows. On a mesh, all processes call this
        together.
        """
        count = integer(f"{NAME}.blocked", "k", k)
        if count < 1:
            raise ValueError(
                f"{NAME}.blocked got {count} for argument `k`, expected a positive number "
                "of unknowns"
            )
        rows, block = self._rows, self._rows.block * count
        neighborhood = self._neighborhood("blocked")
        if isinstance(rows, MeshRows):
            names = rows.static.names
            return Plan(rows_on_mesh(neighborhood, rows.static.mesh, names, block))
        rows.communicator(f"{NAME}.blocked")
        return Plan(RankRows(neighborhood, rows.comm, block))

    @overload
    def exchange(self, fields: T, *, axis: int = 0, during: None = None) -> T: ...

    @overload
    def exchange(
        self, fields: T, *, axis: int = 0, during: Callable[[T], R]
    ) -> tuple[T, R]: ...

    @on_own_devices
    def exchange(
        self, fields: T, *, axis: int = 0, during: Callable[[T], R] | None = None
    ) -> T | tuple[T, R]:
        """Set the ghosts to the rows of their owners.

        All fields together are one message for each neighbor.

        Arguments:
            fields: An array, or a tree of arrays.
            axis: The axis of all arrays along which the rows are.
            during: A function of the fields, with their old ghosts, to compute while
                messages are in flight.

        Returns:
            The fields, with their ghosts filled; with ``during``, a tuple of these and the
            result of ``during``.

        """
        return self._exchange(fields, during, axis)

    @on_own_devices
    def start(self, fields: T, *, axis: int = 0) -> Request[T]:
        """Start an :meth:`exchange`, which :meth:`finish` completes.

        Arguments:
            fields: An array, or a tree of arrays.
            axis: The axis of all arrays along which the rows are.

        Returns:
            A request, to be passed to :meth:`finish` or :func:`mpi4jax.wait` once.

        """
        return self._start(fields, axis)

    @on_own_devices
    def accumulate(self, fields: T, op: Op = MPI.SUM, *, axis: int = 0) -> T:
        """Add the ghosts to the rows of their owners, and set them to zero.

        This is the transpose of :meth:`exchange`, as that is of this.

        Arguments:
            fields: An array, or a tree of arrays.
            op (mpi4py.MPI.Op): What is done instead of a sum: :obj:`mpi4py.MPI.MAX` or
                ``MIN``.
            axis: The axis of all arrays along which the rows are.

        Returns:
            The fields, with zeros in the ghosts.

        """
        return self._accumulate(fields, op, axis)

    @on_own_devices
    def sum_shared(self, fields: T, *, axis: int = 0) -> T:
        """Set all copies of a row to their sum, as of nodes that finite elements share."""
        total = self._run("sum_shared", accumulate_ghosts, fields, axis)
        return self._run("sum_shared", exchange_ghosts, total, axis)

    @on_own_devices
    def without_ghosts(self, fields: T, *, axis: int = 0) -> T:
        """The own rows of all fields, without ghosts.

        Arguments:
            fields: An array, or a tree of arrays.
            axis: The axis of all arrays along which the rows are.

        """
        return self._without_ghosts("without_ghosts", fields, axis)

    def _without_ghosts(self, function: str, fields: T, axis: int) -> T:
        leaves, structure = self._checked(function, fields, axis, self.size)
        return structure.unflatten(self._rows.own(x, axis) for x in leaves)

    @on_own_devices
    def with_ghosts(self, fields: T, *, axis: int = 0) -> T:
        """Put own rows where they are in fields with ghosts, and fill these.

        Arguments:
            fields: An array, or a tree of arrays, without ghosts.
            axis: The axis of all arrays along which the rows are.

        """
        return self._with_ghosts("with_ghosts", fields, axis)

    def _with_ghosts(self, function: str, fields: T, axis: int) -> T:
        self._communicator_of(f"{NAME}.{function}")
        leaves, structure = self._checked(function, fields, axis, self._rows.own_count)
        own = structure.unflatten(self._rows.put(x, axis) for x in leaves)
        return self._run(function, exchange_ghosts, own, axis)

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
        # On a mesh, only its program has own rows.
        self._communicator_of(f"{NAME}.gather")
        return self._gather(self._without_ghosts("gather", fields, 0), root)

    @overload
    def scatter(self, fields: Callable[[], T], *, root: None = None) -> T: ...

    @overload
    def scatter(self, fields: T, *, root: Integer | None = None) -> T: ...

    @on_own_devices
    def scatter(self, fields: PyTree, *, root: Integer | None = None) -> PyTree:
        """The rows of this process, from whole fields in the order of :meth:`gather`.

        Arguments:
            fields: An array of all points, or a tree of them, on all processes. Or a
                function without arguments that computes these, of which each process
                computes its own rows only.
            root (int): The one process that has them, if not all do. On the others, only
                shapes and dtypes are used, so they may pass
                :class:`jax.ShapeDtypeStruct` instead of arrays.

        """
        return self._with_ghosts("scatter", self._scatter(fields, root), 0)

    def spread(self, fields: T) -> T:
        """Whole arrays of the rows of all processes, for a program on the plan's mesh.

        They are filled up with zeros to the same number of rows on each process.

        Arguments:
            fields: An array with the rows of this process, or a tree of them.

        """
        function, rows = f"{NAME}.spread", self._rows
        if not isinstance(rows, MeshRows):
            raise ValueError(
                f"{function} was called of a plan on a communicator, expected one on a mesh"
            )
        tree, leaves = Tree("fields", fields), []
        for name, x in tree.named_arrays(function):
            shape = np.shape(x)
            if not shape or shape[0] > self.size:
                raise ValueError(
                    f"{function} got an array of shape {shape} for `{name}`, expected at "
                    f"most {self.size} rows along its first axis"
                )
            padded = np.zeros((self.size, *shape[1:]), jnp.result_type(x))
            padded[: shape[0]] = x
            leaves.append(rows.static.spread(padded))
        return tree.with_leaves(leaves)

    def renumber(self) -> np.ndarray:
        """New ids of the rows of this process. All processes call this together.

        Each process has consecutive ids for its own rows, in their order, and those of the
        next rank follow.
        """
        neighborhood = self._neighborhood("renumber")
        if not self._is_on_mesh:
            self._communicator_of(f"{NAME}.renumber")
        new_ids = discovery.renumbered(neighborhood, self.comm)
        return rows_of_points(new_ids, self._rows.block)

    def describe(self, fields: PyTree = None) -> str:
        """A text about the neighbors of this process, and the balance of all.

        Arguments:
            fields: Fields whose messages are described, too.

        """
        neighborhood, block = self._neighborhood("describe"), self._rows.block
        size = neighborhood.size * block
        leaves, _ = self._checked("describe", fields, 0, size)
        nbytes = sum(x.nbytes for x in leaves) * block // max(size, 1)
        counts, rank = neighborhood.counts, self.comm.Get_rank()
        mean, own = max(sum(counts) / len(counts), 1), counts[rank] * block
        lines = [
            f"rank {rank} of {len(counts)}: {own} own rows, {size - own} ghosts",
            f"own points of all ranks: {min(counts)} to {max(counts)}, "
            f"{max(counts) / mean:.2f} of the mean",
        ]
        for neighbor, *lists in zip(
            neighborhood.ranks, neighborhood.sent, neighborhood.received, strict=True
        ):
            sent, received = (
                f"{len(rows)} points" + f" ({len(rows) * nbytes} bytes)" * bool(leaves)
                for rows in lists
            )
            lines.append(f"  rank {neighbor}: {sent} to it, {received} from it")
        return "\n".join(lines)

    @override
    def _communicator_of(self, function: str) -> Communicator:
        return self._rows.communicator(function)

    @override
    def _fields(self, name: str, fields: PyTree, axis: int) -> Fields:
        """The fields of a call, in which the unknowns of a point have an own axis."""
        leaves, structure = self._checked(name, fields, axis, self.size)
        # It is behind that of the points.
        position = axis - 1 if axis < 0 and self._rows.block > 1 else axis
        communicator = self._communicator_of(f"{NAME}.{name}")
        return Fields(
            [_split(x, axis, self._rows.block) for x in leaves],
            structure,
            RowGhosts(communicator, self._rows.pattern, position),
            [self._rows.table],
            self._rows.ranks,
            _Join(axis, self._rows.block) if self._rows.block > 1 else None,
        )

    def _checked(
        self, function: str, fields: PyTree, axis: int, size: int
    ) -> tuple[list[Array], PyTreeDef]:
        name = f"{NAME}.{function}"
        axis = integer(name, "axis", axis)
        tree = Tree("fields", fields)
        leaves = list(tree.jax_arrays(name))
        for path, x in leaves:
            self._checked_shape(function, path, x, axis, size)
        return [x for _, x in leaves], tree.structure

    def _checked_shape(
        self, function: str, name: str, x: Leaf, axis: int, size: int
    ) -> tuple[int, ...]:
        """The shape of an array, which has to have this many rows."""
        shape = jnp.shape(x)
        if not -len(shape) <= axis < len(shape) or shape[axis] != size:
            raise ValueError(
                f"{NAME}.{function} got an array of shape {shape} for `{name}`, "
                f"expected {size} rows along axis {axis}"
            )
        return shape

    # Whole fields.

    @override
    def _part_division(self, function: str, name: str, x: Array) -> RowDivision:
        return RowDivision((self._rows.total, *x.shape[1:]), self._rows.counts)

    @override
    def _whole_division(self, function: str, name: str, x: Leaf) -> RowDivision:
        shape = self._checked_shape(function, name, x, 0, self._rows.total)
        return RowDivision(shape, self._rows.counts)

    @override
    def _operands(self, function: str) -> Sequence[Array]:
        return (self._rows.positions,)


def _split(x: Array, axis: int, block: int) -> Array:
    """A field with an axis for the unknowns of a point."""
    if block == 1:
        return x
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :])


@dataclass(frozen=True)
class _Join:
    """Gives a field the unknowns of all points along one axis."""

    axis: int
    block: int

    def __call__(self, x: Array) -> Array:
        axis = self.axis % (x.ndim - 1)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


@dataclass(frozen=True, eq=False)
class _Itself:
    """A plan that belongs to this process, as the static part of a tree without arrays."""

    plan: Plan


def _place(
    function: str, comm: PyTree, names: str | Sequence[Hashable] | None
) -> tuple[MPI.Intracomm, jax.sharding.Mesh | None, tuple[Hashable, ...]]:
    """The communicator of an argument `comm`, with its mesh and the mesh's axes, if any."""
    function = f"{NAME}.{function}"
    if isinstance(comm, jax.sharding.Mesh):
        axes = names_of(function, comm, names)
        return axis_comm(comm, axes), comm, axes
    if names is not None:
        raise ValueError(
            f"{function} got an argument `names` with a communicator, expected it with a "
            "mesh only"
        )
    handles.communicator(function, comm)  # it can be used
    own = handles.get_default_comm() if comm is None else unpack_hashable(comm)
    return own, None, ()


def _rows_of(
    neighborhood: Neighborhood,
    comm: MPI.Intracomm,
    mesh: jax.sharding.Mesh | None,
    names: tuple[Hashable, ...],
) -> RankRows | MeshRows:
    if mesh is None:
        return RankRows(neighborhood, comm, block=1)
    return rows_on_mesh(neighborhood, mesh, names, block=1)
