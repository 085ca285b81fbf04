"""Computing while messages are in flight.

XLA runs computations that do not depend on each other in any order. So a computation
between the start of a message and the wait for it has to depend on the start, and the wait
on the computation. :func:`ordering_barrier` makes these dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import NamedTuple, TypeVar, cast

import jax

from ..arguments.checks import check_callable
from ..arguments.dtypes import avals_of
from ..arguments.types import Array
from ..blocks.exchange import BlockExchange
from ..operations._eager import on_own_devices
from ..operations._in_order import in_order
from ..operations._operation import Operation
from ..xla.call_sites import Frame, current_line, describe_stack, scope_of
from ..xla.jax_compat import (
    Effect,
    Equation,
    Literal,
    ShapedArray,
    Tracer,
    Var,
    is_ordered,
    is_ref,
    source_info_of,
    trace_state_clean,
    traceback_of_equation,
)
from ..xla.traced import Environment, Traced, evaluate_equation, read
from .flights import flight_of
from .requests import prepare, set_line
from .start_and_wait import Flight, bind_start, bind_wait, operands_of_wait

T = TypeVar("T")
R = TypeVar("R")


def ordering_barrier(tree: T) -> T:
    """Put a computation in order with the calls of MPI.

    What depends on the result is computed after all earlier calls of MPI, and what
    the argument depends on is computed before all later ones. Use it to place a computation
    between the start of a message and the wait for it.

    Arguments:
        tree: A tree of arrays.

    Returns:
        The tree, unchanged.

    """
    if trace_state_clean():
        return tree  # Eager calls are made one after the other anyway.
    leaves, structure = jax.tree_util.tree_flatten(tree)
    tree = jax.tree_util.tree_unflatten(structure, in_order(leaves))
    return tree


def overlap(communicate: Callable[[], T], *, during: Callable[[], R]) -> tuple[T, R]:
    """Compute while messages are in flight.

    The operations of ``communicate`` that do not depend on the result of another one are
    started. Then ``during`` is computed. Then the operations are waited for, and the rest
    of ``communicate`` is done. Operations that have no nonblocking form, and those inside
    of loops and branches, are done before ``during``.

    Refs (``jax.new_ref``) and callbacks follow this order: if ``communicate`` writes the
    result of an operation to a ref, ``during`` reads the old value.

    Inside of :func:`jax.jit`, XLA computes nothing of ``during`` before the operations are
    started, except what does not use the program's arrays.

    Arguments:
        communicate: A function without arguments that calls MPI.
        during: A function without arguments.

    Returns:
        The results of both functions.

    """
    check_callable("overlap", "communicate", communicate, "no arguments")
    check_callable("overlap", "during", during, "no arguments")
    first = _started(communicate)
    if trace_state_clean():
        try:
            result = during()
        except Exception:
            # The other ranks go on, and wait for the rest of `communicate`.
            jax.block_until_ready(first.finish())
            raise
        return first.finish(), jax.block_until_ready(result)
    computed = Traced(during)
    # JAX keeps reads and writes of a ref in order by itself.
    ordered = {
        n: x
        for n, x in enumerate(computed.consts)
        if isinstance(x, Tracer) and not is_ref(x.aval)
    }
    # `communicate` goes on with the results, too: XLA copies nothing then.
    for n, new in zip(ordered, in_order(ordered.values()), strict=True):
        computed.consts[n] = new
        first.replace(ordered[n], new)
    results = computed()
    # It overwrites them when `during` has read them.
    common = [n for n, x in ordered.items() if first.takes(x)]
    after = in_order([*results, *(computed.consts[n] for n in common)])
    for n, new in zip(common, after[len(results) :], strict=True):
        first.replace(ordered[n], new)
    return first.finish(), computed.tree(after[: len(results)])


class _Started(NamedTuple):
    """An operation in flight."""

    equation: Equation
    flight: Flight
    ticket: Array
    #: Operands of wait behind the ticket.
    wait_operands: list[Array]
    #: The line of an eager start.
    line: str
    #: Arrays that the first stage of an exchange of blocks has changed.
    packed: list[Array]


class _Split(Traced[T]):
    """A function that communicates, in two halves."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__(function)
        self._env: Environment = dict(zip(self.jaxpr.constvars, self.consts, strict=True))
        #: Variables that are not known yet: results, and refs that are used later.
        self._missing: set[Var] = set()
        self._later: list[Equation] = []
        self._started: list[_Started] = []

    def takes(self, array: Array) -> bool:
        """Whether the function takes an array from outside."""
        return any(x is array for x in self.consts)

    def replace(self, old: Array, new: Array) -> None:
        """Replace an array from outside by another one, from now on."""
        pairs = zip(self.jaxpr.constvars, self.consts, strict=True)
        replaced = [variable for variable, value in pairs if value is old]
        self._env.update(dict.fromkeys(replaced, new))

    def start(self) -> None:
        if not self.jaxpr.effects:
            # Nothing is sent. What overwrites arrays that `during` reads comes after it.
            self._later = list(self.jaxpr.eqns)
            return
        effects_later: set[Effect] = set()
        for equation in self.jaxpr.eqns:
            variables = {x for x in equation.invars if not isinstance(x, Literal)}
            effects = set(filter(is_ordered, equation.effects))
            if variables & self._missing or effects & effects_later:
                # Calls stay in order, and so does all else that has effects.
                effects_later |= effects
                self._later.append(equation)
                self._missing.update(equation.outvars)
                self._missing.update(x for x in variables if is_ref(x.aval))
                continue
            operands = read(equation.invars, self._env)
            operation = equation.params.get("operation")
            packed: list[Array] = []
            avals = [cast(ShapedArray, x.aval) for x in equation.invars]
            with source_info_of(equation):
                if isinstance(operation, BlockExchange):
                    packed, operands = operation.pack(operands)
                    operation, avals = operation.messages_only(), avals_of(operands)
                flight = _flight_of(operation, avals)
                if flight is not None:
                    prepare()
                    ticket = bind_start(flight, operands)
            if flight is None:
                evaluate_equation(equation, self._env)
                continue
            line = ""
            if trace_state_clean():
                # Another line may have lowered its program. Nobody waits if `during` fails.
                frames = starmap(Frame, traceback_of_equation(equation))
                scope = scope_of(equation.source_info.name_stack)
                # JAX does not keep what calls the function that is traced.
                line = describe_stack(frames, scope) or current_line(scope)
                set_line(ticket, line)
            wait_operands = operands_of_wait(flight, operands)
            started = _Started(equation, flight, ticket, wait_operands, line, packed)
            self._started.append(started)
            self._missing.update(equation.outvars)

    @on_own_devices
    def finish(self) -> T:
        for equation, flight, ticket, wait_operands, line, packed in self._started:
            with source_info_of(equation):
                results = bind_wait(
                    flight, ticket, wait_operands, may_be_zero=False, line=line
                )
                operation = equation.params["operation"]
                if isinstance(operation, BlockExchange):
                    operands = read(equation.invars, self._env)
                    results = operation.unpack(packed, results, operands)
            self._env.update(zip(equation.outvars, results, strict=True))
        for equation in self._later:
            evaluate_equation(equation, self._env)
        return self.tree(read(self.jaxpr.outvars, self._env))


@on_own_devices
def _started(communicate: Callable[[], T]) -> _Split[T]:
    split = _Split(communicate)
    split.start()
    return split


def _flight_of(operation: object, avals: Sequence[ShapedArray]) -> Flight | None:
    """The flight of an equation's operation, or None if it has no nonblocking form."""
    if not isinstance(operation, Operation):
        return None
    return flight_of(operation, avals_of(avals), operation.name)
