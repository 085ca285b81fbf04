"""Updates of ghost rows, and their transposes, as all plans have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, overload

import jax
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from ..arguments.checks import check_callable, integer
from ..arguments.dtypes import OPERATORS
from ..arguments.types import Array, Op, PyTree
from ..blocks.exchange import BlockExchange
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.plans import PlanBase
from ..nonblocking.overlap import overlap
from ..nonblocking.requests import Request, start_call, wait
from ..operations._calls import Call
from ..operations._eager import PlanCall, on_own_devices, run_named
from .rows import Pattern, Step

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class _EagerStep(PlanCall):
    """An eager call of a plan is a program of its own, for all plans alike."""

    step: Step
    method: str
    operator: str

    @property
    def name(self) -> str:
        return f"unstructured_{self.method}"

    @property
    def communicator(self) -> Communicator:
        return self.step.communicator

    def call_in_program(
        self, leaves: list[Array], table: Array, *ranks: Array
    ) -> list[Array]:
        method: Callable[..., list[Array]] = getattr(self.step, self.method)
        params = {"operator": self.operator} if self.operator else {}
        return method(leaves, [table], ranks, **params)


class RowPlan(PlanBase):
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
    def update(self, fields: T, *, axis: int = 0, during: None = None) -> T: ...

    @overload
    def update(
        self, fields: T, *, axis: int = 0, during: Callable[[T], R]
    ) -> tuple[T, R]: ...

    def update(
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
            return self._call("update", fields, axis)
        check_callable("unstructured.Plan.update", "during", during, "the fields")
        function = during
        return overlap(
            lambda: self.update(fields, axis=axis), during=lambda: function(fields)
        )

    @on_own_devices
    def start(self, fields: T, *, axis: int = 0) -> Request[T]:
        """Start an :meth:`update`, which :meth:`finish` completes.

        Arguments:
            fields: An array, or a tree of arrays.
            axis: The axis of all arrays along which the rows are.

        Returns:
            A request, to be passed to :meth:`finish` or :func:`mpi4jax.wait` once.

        """
        function = "unstructured.Plan.start"
        leaves, structure = self._leaves("start", fields, axis)
        step = self._step("start", axis)
        exchange = step.exchange(leaves)
        operands = [
            *leaves,
            *exchange.description.dynamic_operands([self._table], self._ranks),
        ]
        finishing = _Finishing(exchange, structure, axis, self._block)
        with jax.named_scope(function):
            _, packed = exchange.pack(operands)
            operation = exchange.messages_only()
            sent, received, ranks = map(list, operation.split_leaves(packed))
            call = Call(function, operation, sent, received, *ranks)
            call.then(_finish, operands, finishing=finishing)
            return start_call(call)

    def finish(self, request: Request[T]) -> T:
        """Wait for an update, and return the fields with their ghosts filled."""
        return wait(request)

    def accumulate(self, fields: T, op: Op = MPI.SUM, *, axis: int = 0) -> T:
        """Add the ghosts to the rows of their owners, and set them to zero.

        This is the transpose of :meth:`update`, as that is of this.

        Arguments:
            fields: An array, or a tree of arrays.
            op (mpi4py.MPI.Op): What is done instead of a sum: :obj:`mpi4py.MPI.MAX` or
                ``MIN``.
            axis: The axis of all arrays along which the rows are.

        Returns:
            The fields, with zeros in the ghosts.

        """
        function = "unstructured.Plan.accumulate"
        operator_number = handles.operator_number(function, op)
        is_known = operator_number < len(OPERATORS)
        operator = OPERATORS[operator_number] if is_known else "an operator of your own"
        if operator == "SUM":
            return self._call("accumulate", fields, axis)
        if operator not in ("MAX", "MIN"):
            raise ValueError(
                f"{function} got {operator} for argument `op`, expected MPI.SUM, MPI.MAX "
                "or MPI.MIN"
            )
        name = "accumulate_extremum"
        return self._call(name, fields, axis, operator, function="accumulate")

    def sum_shared(self, fields: T, *, axis: int = 0) -> T:
        """Set all copies of a row to their sum, as of nodes that finite elements share."""
        total = self._call("accumulate", fields, axis, function="sum_shared")
        return self._call("update", total, axis, function="sum_shared")

    # The arrays.

    def _step(self, function: str, axis: int) -> Step:
        # The unknowns of a point have an axis of their own, behind that of the points.
        position = axis - 1 if axis < 0 and self._block > 1 else axis
        communicator = self._communicator_of(f"unstructured.Plan.{function}")
        return Step(self._pattern, position, communicator)

    @on_own_devices
    def _call(
        self, name: str, fields: T, axis: int, operator: str = "", *, function: str = ""
    ) -> T:
        """The result of a step, for a function: that of its name, or another one."""
        function = function or name
        leaves, structure = self._leaves(function, fields, axis)
        step = self._step(function, axis)
        if leaves and (self._pattern.sent or self._pattern.received):
            call = _EagerStep(step, name, operator)
            operands = [leaves, self._table, *self._ranks]
            leaves = run_named(f"unstructured.Plan.{function}", call, operands)
        return structure.unflatten(_joined(x, axis, self._block) for x in leaves)

    def _leaves(
        self, function: str, fields: PyTree, axis: int
    ) -> tuple[list[Array], PyTreeDef]:
        """The fields, in which the unknowns of a point have an axis of their own."""
        leaves, structure = self._checked(function, fields, axis, self.size)
        return [_split(x, axis, self._block) for x in leaves], structure

    def _checked(
        self, function: str, fields: PyTree, axis: int, size: int
    ) -> tuple[list[Array], PyTreeDef]:
        name = f"unstructured.Plan.{function}"
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


class _Finishing(NamedTuple):
    """How an update is finished that was started."""

    exchange: BlockExchange
    structure: PyTreeDef
    #: The axis along which the rows of the fields are.
    axis: int
    block: int


def _finish(
    arrived: list[Array],
    operands: list[Array],
    *,
    finishing: _Finishing,
) -> PyTree:
    exchange, structure, axis, block = finishing
    results = exchange.unpack([], arrived, operands)
    return structure.unflatten(_joined(x, axis, block) for x in results)


def _split(x: Array, axis: int, block: int) -> Array:
    """A field with an axis for the unknowns of a point."""
    if block == 1:
        return x
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :])


def _joined(x: Array, axis: int, block: int) -> Array:
    """A field with the unknowns of all points along one axis."""
    if block == 1:
        return x
    axis %= x.ndim - 1
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
