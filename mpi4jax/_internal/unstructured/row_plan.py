"""Exchanges of ghost rows, as all plans have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, overload

from jax.tree_util import PyTreeDef
from mpi4py import MPI

from ..arguments.checks import check_callable, integer
from ..arguments.types import Array, Op, PyTree
from ..ghosts import Fields, GhostPlan, accumulate_ghosts, exchange_ghosts
from ..layout.packing import Tree
from ..nonblocking.overlap import overlap
from ..nonblocking.requests import Request
from ..operations._eager import on_own_devices
from .rows import Pattern, RowGhosts

T = TypeVar("T")
R = TypeVar("R")

#: The name of plans in errors and reports.
NAME = "unstructured.Plan"


class RowPlan(GhostPlan):
    """A pattern of rows, and the functions that exchange them."""

    #: The number of rows of a field on this process.
    size: int
    _pattern: Pattern
    #: The table of rows, and the operand with the ranks that the program computes, if the
    #: program does.
    _table: Array
    _ranks: tuple[Array, ...] = ()
    #: How many rows each point has.
    _block = 1

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
        if during is None:
            return self._run(
                f"{NAME}.exchange", self._fields("exchange", fields, axis), exchange_ghosts
            )
        check_callable(f"{NAME}.exchange", "during", during, "the fields")
        function = during
        return overlap(
            lambda: self.exchange(fields, axis=axis), during=lambda: function(fields)
        )

    @on_own_devices
    def start(self, fields: T, *, axis: int = 0) -> Request[T]:
        """Start an :meth:`exchange`, which :meth:`finish` completes.

        Arguments:
            fields: An array, or a tree of arrays.
            axis: The axis of all arrays along which the rows are.

        Returns:
            A request, to be passed to :meth:`finish` or :func:`mpi4jax.wait` once.

        """
        return self._start(f"{NAME}.start", self._fields("start", fields, axis))

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
        function = f"{NAME}.accumulate"
        op_number = self._operator(function, op)
        fields_and_ghosts = self._fields("accumulate", fields, axis)
        return self._run(function, fields_and_ghosts, accumulate_ghosts, op_number)

    @on_own_devices
    def sum_shared(self, fields: T, *, axis: int = 0) -> T:
        """Set all copies of a row to their sum, as of nodes that finite elements share."""
        function = f"{NAME}.sum_shared"
        rows = self._fields("sum_shared", fields, axis)
        total = self._run(function, rows, accumulate_ghosts)
        return self._run(function, self._fields("sum_shared", total, axis), exchange_ghosts)

    def _fields(self, name: str, fields: PyTree, axis: int) -> Fields:
        """The fields of a call, in which the unknowns of a point have an own axis."""
        leaves, structure = self._checked(name, fields, axis, self.size)
        # It is behind that of the points.
        position = axis - 1 if axis < 0 and self._block > 1 else axis
        communicator = self._communicator_of(f"{NAME}.{name}")
        return Fields(
            [_split(x, axis, self._block) for x in leaves],
            structure,
            RowGhosts(communicator, self._pattern, position),
            [self._table],
            self._ranks,
            _Join(axis, self._block) if self._block > 1 else None,
        )

    def _checked(
        self, function: str, fields: PyTree, axis: int, size: int
    ) -> tuple[list[Array], PyTreeDef]:
        name = f"{NAME}.{function}"
        axis = integer(name, "axis", axis)
        tree = Tree("fields", fields)
        leaves = []
        for path, x in tree.jax_arrays(name):
            if not -x.ndim <= axis < x.ndim or x.shape[axis] != size:
                raise ValueError(
                    f"{name} got an array of shape {x.shape} for `{path}`, expected {size} "
                    f"rows along axis {axis}"
                )
            leaves.append(x)
        return leaves, tree.structure


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
