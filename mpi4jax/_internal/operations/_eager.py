"""Eager calls: programs that do nothing but one operation, each compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.types import Array, ArrayLike, PyTree
from ..mpi.handles import Communicator
from ..xla.call_sites import mark_eager
from ..xla.jax_compat import has_mesh, trace_state_clean, without_mesh

#: An operand of a user's call: an array, or a list of the leaves of a tree.
ArrayOrLeaves: TypeAlias = Any
#: The function that all eager calls run.
EagerRun: TypeAlias = "Callable[[EagerCall, Sequence[ArrayOrLeaves]], PyTree]"

P = ParamSpec("P")
T = TypeVar("T")


def on_own_devices(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function run on the devices of its arguments where it is called eagerly.

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

    An operation, a start, a wait, or a call of a halo plan, with its parameters, by which
    it compares and hashes.
    """

    @property
    def name(self) -> str:
        """The name of the program, for profiles and compilation caches."""

    @property
    def communicator(self) -> Communicator: ...

    def __hash__(self) -> int: ...

    def call_in_program(self, *operands: ArrayOrLeaves) -> PyTree:
        """The result, a tree of arrays."""

    def forwarded_operand(self) -> int | None:
        """The position of the operand that is the result, if there is one."""


def run_eagerly(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    """The result of a call outside of any program, or None without results."""
    return _run(call, operands)


@on_own_devices
@mark_eager
def _run(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    programs = call.communicator.programs
    compiled = programs.get(call)
    if compiled is None:
        compiled = programs[call] = _compile(call)
    program, forwarded = compiled
    result = program(*operands)
    if type(result) is not tuple:
        return result
    # No result that the caller could wait for, so the call itself waits.
    result[0].block_until_ready()
    if forwarded is None:
        return None
    operand = operands[forwarded]
    return list(map(_as_array, operand)) if type(operand) is list else _as_array(operand)


def evaluate(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
    """The result of a primitive that is bound outside of a trace."""
    # Also under jax.disable_jit: an operation can only run compiled.
    with jax.disable_jit(False):
        return run_eagerly(call, operands)


def _compile(call: EagerCall) -> tuple[Callable[..., PyTree], int | None]:
    """A jitted function that does only this call, and its forwarded operand.

    If MPI writes nothing, the function gives a tuple of something to wait for: a
    program without results would take JAX's token, slowly. Nor does it give the operand
    that is the result: XLA would copy it.
    """
    forwarded = call.forwarded_operand()

    def run(*operands: ArrayOrLeaves) -> PyTree:
        result = call.call_in_program(*operands)
        has_result = forwarded is None and bool(jax.tree_util.tree_leaves(result))
        return result if has_result else (jnp.zeros((), bool),)

    mark_eager(run)
    run.__name__ = call.name
    return jax.jit(run), forwarded


def wrap_eager_calls(wrapper: Callable[[EagerRun], EagerRun]) -> None:
    """Put a function around all eager calls from now on."""
    global _run
    _run = wrapper(_run)  # type: ignore[assignment]


def _as_array(x: ArrayLike) -> Array:
    # JAX takes 10 us to find that an array is one.
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
