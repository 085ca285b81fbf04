"""Eager calls: programs that do nothing but one operation, each compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..mpi.handles import Communicator
from ..xla.call_sites import mark_eager
from ..xla.jax_compat import has_mesh, trace_state_clean, without_mesh

T = TypeVar("T")


def on_own_devices(function: Callable[..., T]) -> Callable[..., T]:
    """Have a function run on the devices of its arguments where it is called eagerly.

    A mesh that is set is for programs on several processes.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if not (has_mesh() and trace_state_clean()):
            return function(*args, **kwargs)
        with without_mesh():
            return function(*args, **kwargs)

    return call


class EagerCalls:
    """The calls of an operation outside of any program, each in one of its own.

    Arguments:
        name: The name of the programs, for profiles and compilation caches.
        apply: Calls the operation in a program, with operands and parameters.
        forwarded_operand: Gives, for the parameters, the position of the operand that is
            the result, if there is one.

    """

    def __init__(
        self,
        name: str,
        apply: Callable[..., Any],
        forwarded_operand: Callable[..., int | None] = lambda **_: None,
    ) -> None:
        self.name = name
        self._apply = apply
        self._forwarded_operand = forwarded_operand

    @on_own_devices
    @mark_eager
    def run(
        self, communicator: Communicator, operands: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """The result of a call, or None without results."""
        # Rules of JAX's give the parameters in any order.
        key = self, frozenset(params.items())
        compiled = communicator.programs.get(key)
        if compiled is None:
            compiled = communicator.programs[key] = self._compile(params)
        program, forwarded = compiled
        result = program(*operands)
        if type(result) is not tuple:
            return result
        # No result that the caller could wait for, so the call itself waits.
        result[0].block_until_ready()
        if forwarded is None:
            return None
        operand = operands[forwarded]
        return (
            list(map(_as_array, operand)) if type(operand) is list else _as_array(operand)
        )

    def evaluate(
        self, communicator: Communicator, operands: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """The result of a primitive that is bound outside of a trace."""
        # Also under jax.disable_jit: an operation can only run compiled.
        with jax.disable_jit(False):
            return self.run(communicator, operands, params)

    def _compile(self, params: dict[str, Any]) -> tuple[Callable[..., Any], int | None]:
        """A jitted function that does only this call, and its forwarded operand.

        If MPI writes nothing, the function gives a tuple of something to wait for: a
        program without results would take JAX's token, slowly. Nor does it give the operand
        that is the result: XLA would copy it.
        """
        forwarded = self._forwarded_operand(**params)

        def run(*operands: Any) -> Any:
            result = self._apply(*operands, **params)
            has_result = forwarded is None and bool(jax.tree_util.tree_leaves(result))
            return result if has_result else (jnp.zeros((), bool),)

        mark_eager(run)
        run.__name__ = self.name
        return jax.jit(run), forwarded


def wrap_eager_calls(wrapper: Callable[[Callable[..., Any]], Any]) -> None:
    """Put a function around all eager calls from now on."""
    EagerCalls.run = wrapper(EagerCalls.run)  # type: ignore[method-assign]


def _as_array(x: Any) -> Any:
    # JAX takes 10 us to find that an array is one.
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
