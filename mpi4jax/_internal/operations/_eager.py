"""Eager calls: programs that do nothing but one operation or one call of a plan.

Each is compiled once, and kept with its communicator, by the value of the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, PyTree
from ..mpi.handles import Communicator, check_not_freed
from ..xla.call_sites import EagerSites, current_line, mark_eager
from ..xla.jax_compat import has_mesh, trace_state_clean, without_mesh

#: An operand of a user's call: an array, or a list (`type(operand) is list`) of the leaves
#: of a tree. Each class of calls takes one of the two, or both.
ArrayOrLeaves: TypeAlias = Any
#: The function that all eager calls run.
EagerRun: TypeAlias = "Callable[[EagerCall, Sequence[ArrayOrLeaves]], PyTree]"

P = ParamSpec("P")
T = TypeVar("T")


def on_own_devices(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function run on the devices of its arguments where it is called eagerly.

    A mesh that is set is for programs on several processes.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not (has_mesh() and trace_state_clean()):
            return function(*args, **kwargs)
        with without_mesh():
            return function(*args, **kwargs)

    return call


class EagerCall(Protocol):
    """A call that can be compiled as a program by itself.

    An operation, a start, a wait, or a call of a plan, with its parameters. It compares and
    hashes by its class and these, as a frozen dataclass does and a named tuple does not.
    """

    @property
    def name(self) -> str:
        """The name of the program, for profiles and compilation caches."""

    @property
    def communicator(self) -> Communicator: ...

    @override
    def __hash__(self) -> int: ...

    def call_in_program(self, *operands: ArrayOrLeaves) -> PyTree:
        """The result, a tree of arrays, but no tuple."""

    def forwarded_operand(self) -> int | None:
        """The position of the operand that is the result, if there is one."""


class PlanCall:
    """Base of calls of plans, sums and solvers, whose results are no operands."""

    def forwarded_operand(self) -> None:
        return None


def run_eagerly(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    """The result of a call outside of any program, or None without results."""
    return _run(call, operands)


@on_own_devices
@mark_eager
def _run(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    program = program_of(call)
    result = program.run(*operands)
    if type(result) is not tuple:
        return result
    # No result that the caller could wait for, so the call itself waits.
    result[0].block_until_ready()
    if program.forwarded is None:
        return None
    operand = operands[program.forwarded]
    return list(map(_as_array, operand)) if type(operand) is list else _as_array(operand)


def run_named(function: str, call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    """The result of a call of a plan, in whatever is being traced or by itself.

    Reports have the name of the user's function beside the line that calls it.
    """
    check_not_freed(function, call.communicator)
    if not trace_state_clean():
        with jax.named_scope(function):
            return call.call_in_program(*operands)
    return run_on_line(current_line(function), call, operands)


def run_on_line(line: str, call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    """The result of a call outside of any program, which reports show on this line."""
    sites = program_of(call).sites
    with sites.called_by(line):
        result = run_eagerly(call, operands)
    sites.end_with(jax.tree_util.tree_leaves(result))
    return result


def evaluate(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    """The result of a primitive that is bound outside of a trace."""
    # Also under jax.disable_jit: an operation can only run compiled.
    with jax.disable_jit(False):
        return run_eagerly(call, operands)


class EagerProgram:
    """A jitted function that does only one call.

    If MPI writes nothing, the function gives a tuple of something to wait for: a
    program without results would take JAX's token, slowly. Nor does it give the operand
    that is the result: XLA would copy it.
    """

    __slots__ = ("forwarded", "run", "sites")

    def __init__(self, call: EagerCall) -> None:
        #: The position of the operand that is the result, if there is one.
        self.forwarded = forwarded = call.forwarded_operand()
        self.sites = EagerSites()

        def run(*operands: ArrayOrLeaves) -> PyTree:
            result = call.call_in_program(*operands)
            has_result = forwarded is None and bool(jax.tree_util.tree_leaves(result))
            return result if has_result else (jnp.zeros((), bool),)

        mark_eager(run)
        run.__name__ = call.name
        self.run: Callable[..., PyTree] = jax.jit(run)


def program_of(call: EagerCall) -> EagerProgram:
    """The program of a call, which all calls that are alike share."""
    programs = call.communicator.programs
    program: EagerProgram | None = programs.get(call)
    if program is None:
        program = programs[call] = EagerProgram(call)
    return program


def wrap_eager_calls(wrapper: Callable[[EagerRun], EagerRun]) -> None:
    """Put a function around all eager calls from now on."""
    global _run
    _run = wrapper(_run)  # type: ignore[assignment]


def _as_array(x: ArrayLike) -> Array:
    # JAX takes 10 us to find that an array is one.
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
