"""Plans of ghosts: copies on this process of cells or rows that other processes own.

A plan describes the ghosts of its fields as :class:`Ghosts`, which make exchanges of
blocks. The steps of all plans, with derivatives of extrema, are here.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from .arguments.checks import check_callable
from .arguments.dtypes import OPERATORS, SUM, avals_of, identity
from .arguments.types import Array, Op, PyTree
from .blocks.copies import View
from .blocks.description import Description
from .blocks.exchange import BlockExchange
from .mpi import handles
from .mpi.handles import Communicator
from .mpi.plans import PlanBase
from .nonblocking.overlap import overlap
from .nonblocking.requests import Request, start_call, wait
from .operations._calls import Call
from .operations._computed import is_computed, where_null
from .operations._eager import PlanCall, run_named
from .operations._transposes import is_inexact
from .xla.jax_compat import ShapedArray

T = TypeVar("T")


class Ghosts(Protocol):
    """Ghosts of fields that a plan describes, compared and hashed by value."""

    @property
    def communicator(self) -> Communicator: ...

    @property
    def is_empty(self) -> bool:
        """Whether there are no ghosts to set."""

    def exchanges(self, types: Sequence[ShapedArray]) -> list[BlockExchange]:
        """The exchanges that set the ghosts of fields of these types: one at least."""


class Fields(NamedTuple):
    """The fields of a user's call, with all that an exchange of their ghosts takes."""

    leaves: list[Array]
    structure: PyTreeDef
    ghosts: Ghosts
    #: The table of rows, and the ranks that the program computes, or nothing.
    table: Sequence[Array] = ()
    ranks: Sequence[Array] = ()
    #: Function that gives a leaf the shape that the user expects. It compares by its value.
    reshape: Callable[[Array], Array] | None = None


def _tree(
    results: Sequence[Array],
    structure: PyTreeDef,
    reshape: Callable[[Array], Array] | None,
) -> Any:
    return structure.unflatten(results if reshape is None else map(reshape, results))


class _Finishing(NamedTuple):
    """How an exchange is finished that was started."""

    first: BlockExchange
    others: tuple[BlockExchange, ...]
    structure: PyTreeDef
    reshape: Callable[[Array], Array] | None


def _finish(
    arrived: list[Array],
    leaves: list[Array],
    table: list[Array],
    ranks: list[Array],
    *,
    finishing: _Finishing,
) -> PyTree:
    first, others, structure, reshape = finishing
    leaves = first.unpack([], arrived, first.operands_of(leaves, table, ranks))
    return _tree(exchange_ghosts(others, leaves, table, ranks), structure, reshape)


#: Function that changes the fields of a call: `exchange_ghosts` or `accumulate_ghosts`. The
#: last argument is the number of an operator.
Step: TypeAlias = Callable[
    [Sequence[BlockExchange], list[Array], Sequence[Array], Sequence[Array], int],
    list[Array],
]


class GhostPlan(PlanBase):
    """Base of plans of ghosts."""

    @abstractmethod
    def _fields(self, name: str, fields: PyTree, *axis: Any) -> Fields:
        """The fields of a call, checked, and the axis of the rows of a plan of rows."""

    def _run(
        self, name: str, step: Step, fields: PyTree, *axis: int, op_number: int = SUM
    ) -> Any:
        """The fields after a step."""
        leaves, structure, ghosts, table, ranks, reshape = self._fields(name, fields, *axis)
        if leaves and not ghosts.is_empty:
            call = _Call(self._public_name.partition(".")[0], ghosts, step, op_number)
            function = f"{self._public_name}.{name}"
            leaves = run_named(function, call, [leaves, [*table], [*ranks]])
        return _tree(leaves, structure, reshape)

    def _exchange(
        self, fields: PyTree, during: Callable[[PyTree], Any] | None, *axis: int
    ) -> Any:
        """The fields with their ghosts set, and a function's result of the old ones."""
        if during is None:
            return self._run("exchange", exchange_ghosts, fields, *axis)
        check_callable(f"{self._public_name}.exchange", "during", during, "the fields")
        return overlap(
            lambda: self._exchange(fields, None, *axis), during=lambda: during(fields)
        )

    def _accumulate(self, fields: PyTree, op: Op, *axis: int) -> Any:
        """The fields with their ghosts accumulated by an operator."""
        function = f"{self._public_name}.accumulate"
        op_number = handles.operator_number(function, op)
        is_known = op_number < len(OPERATORS)
        operator = OPERATORS[op_number] if is_known else "an operator of your own"
        if operator not in ("SUM", "MAX", "MIN"):
            raise ValueError(
                f"{function} got {operator} for argument `op`, expected MPI.SUM, MPI.MAX "
                "or MPI.MIN"
            )
        step = accumulate_ghosts
        return self._run("accumulate", step, fields, *axis, op_number=op_number)

    def _start(self, fields: PyTree, *axis: int) -> Request[Any]:
        """Start the first exchange of the fields' ghosts."""
        checked = self._fields("start", fields, *axis)
        leaves, structure, ghosts, table, ranks, reshape = checked
        first, *others = ghosts.exchanges(avals_of(leaves))
        function = f"{self._public_name}.start"
        with jax.named_scope(function):
            _, packed = first.pack(first.operands_of(leaves, table, ranks))
            operation = first.messages_only()
            sent, received, numbers = map(list, operation.split_leaves(packed))
            call: Call[PyTree] = Call(function, operation, sent, received, *numbers)
            finishing = _Finishing(first, tuple(others), structure, reshape)
            call.then(_finish, leaves, [*table], [*ranks], finishing=finishing)
            return start_call(call)

    def finish(self, request: Request[T]) -> T:
        """Wait for an exchange, and return the fields with their ghosts filled."""
        return wait(request)


@dataclass(frozen=True)
class _Call(PlanCall):
    """A call of a plan: an eager one is a program of its own, for all plans alike."""

    module: str
    ghosts: Ghosts
    step: Step
    op_number: int

    @property
    def name(self) -> str:
        return f"{self.module}_{self.step.__name__.removesuffix('_ghosts')}"

    @property
    def communicator(self) -> Communicator:
        return self.ghosts.communicator

    def call_in_program(
        self, leaves: list[Array], table: list[Array], ranks: list[Array]
    ) -> list[Array]:
        exchanges = self.ghosts.exchanges(avals_of(leaves))
        return self.step(exchanges, leaves, table, ranks, self.op_number)


def exchange_ghosts(
    exchanges: Sequence[BlockExchange],
    fields: list[Array],
    table: Sequence[Array],
    ranks: Sequence[Array],
    op_number: int = SUM,
) -> list[Array]:
    """The fields with their ghosts set."""
    for exchange in exchanges:
        fields = exchange.call(fields, table, ranks)
    return fields


def accumulate_ghosts(
    exchanges: Sequence[BlockExchange],
    fields: list[Array],
    table: Sequence[Array],
    ranks: Sequence[Array],
    op_number: int,
) -> list[Array]:
    """The fields with their ghosts accumulated by an operator, and ghosts of zero."""
    for exchange in reversed(exchanges):
        if op_number == SUM:
            fields = exchange.transposed().call(fields, table, ranks)
        else:
            fields = _accumulate(exchange, op_number, fields, table, ranks)
    return fields


# Extrema.


def _accumulate(
    exchange: BlockExchange,
    op_number: int,
    fields: list[Array],
    table: Sequence[Array],
    ranks: Sequence[Array],
) -> list[Array]:
    """The fields with the extremum of what an exchange copies, and ghosts of zero."""
    operator, description = OPERATORS[op_number], exchange.description
    fields = list(fields)

    def take(view: View) -> Array:
        """The ghosts in a block, which become zero."""
        x = fields[view.array]
        at = x.at[view.indices(table)]
        fields[view.array] = at.set(jnp.zeros((), x.dtype), mode="drop")
        return at.get(mode="fill", fill_value=0)

    def put(copies: Sequence[tuple[View, Array]]) -> None:
        """Set blocks to the extrema of these and of copies."""
        for n, x in enumerate(fields):
            of_field = [(view, part) for view, part in copies if view.array == n]
            if of_field:
                views, parts = zip(*of_field, strict=True)
                fields[n] = _extremum(operator, views, x, list(parts), table)

    for stage in reversed(description.local):
        put([(source, take(result)) for source, result in stage])
    # Each block of ghosts becomes an array of its owner.
    owned = [view for message in description.sent for view in message.blocks]
    empty = [
        jnp.full(view.sizes, identity(op_number, dtype), dtype)
        for view in owned
        for dtype in [description.arrays[view.array].dtype]
    ]
    indices = itertools.count(len(fields))
    arriving = tuple(
        message._replace(
            blocks=tuple(
                View(next(indices), tuple(view.sizes), 0, tuple(map(range, view.sizes)))
                for view in message.blocks
            ),
            may_be_null=is_computed(message.rank),
        )
        for message in description.sent
    )
    back = BlockExchange(
        exchange.communicator,
        Description(
            (*description.arrays, *avals_of(empty)),
            sent=description.received,
            received=arriving,
        ),
    )
    arrays = back.call([*fields, *empty], table, ranks)
    fields[:] = arrays[: len(fields)]
    for message in description.received:
        for view in message.blocks:
            old = take(view)
            if message.may_be_null:
                x = fields[view.array]
                kept = where_null(message.rank, ranks, old, jnp.zeros_like(old))
                fields[view.array] = x.at[view.indices(table)].set(kept, mode="drop")
    put(list(zip(owned, arrays[len(fields) :], strict=True)))
    return fields


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _extremum(
    operator: str,
    views: tuple[View, ...],
    x: Array,
    parts: list[Array],
    table: Sequence[Array],
) -> Array:
    """The extrema of blocks of an array and of copies of these."""
    for view, part in zip(views, parts, strict=True):
        at = x.at[view.indices(table)]
        x = {"MAX": at.max, "MIN": at.min}[operator](part, mode="drop")
    return x


@_extremum.defjvp
def _extremum_jvp(
    operator: str, views: tuple[View, ...], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Any]:
    x, parts, table = primals
    result = _extremum(operator, views, x, parts, table)
    if not is_inexact(x):
        return result, np.zeros(x.shape, jax.dtypes.float0)

    def total(of_x: Array, of_parts: Sequence[Array]) -> Array:
        """The sum over all that attain the extremum."""
        sums = jnp.where(x == result, of_x, 0)
        for view, part, of_part in zip(views, parts, of_parts, strict=True):
            index = view.indices(table)
            attains = part == result.at[index].get(mode="fill")
            sums = sums.at[index].add(jnp.where(attains, of_part, 0), mode="drop")
        return sums

    count = total(jnp.ones_like(x), list(map(jnp.ones_like, parts)))
    return result, total(*tangents[:2]) / count
