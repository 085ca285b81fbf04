"""The ways in which a program can call an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from mpi4jax import notoken
from mpi4jax._internal.nonblocking.requests import start_call
from mpi4jax._internal.operations._calls import Call
from mpi4jax.experimental import auto_tokenize

Function = Callable[[Any], Any]


def _like_result(function: Function, x: Any, value: int) -> jax.Array:
    shape = jax.eval_shape(function, x)
    return jnp.full(shape.shape, value, shape.dtype)


def eager(function: Function) -> Function:
    return function


def in_loop(function: Function) -> Function:
    """Call the operation three times in a loop, and return the last result."""

    def loop(x: Any) -> jax.Array:
        start = _like_result(function, x, 0)
        result: jax.Array = jax.lax.fori_loop(0, 3, lambda i, _: function(x), start)
        return result

    return jax.jit(loop)


def in_cond(function: Function) -> Function:
    """Call the operation in the branch that is taken."""

    def other(x: Any) -> jax.Array:
        return _like_result(function, x, -1)

    branch = jax.jit(lambda x, condition: jax.lax.cond(condition, function, other, x))
    return lambda x: branch(x, jnp.asarray(True))


def tokenized(function: Function) -> Function:
    return jax.jit(auto_tokenize(function))


def nonblocking(function: Function) -> Function:
    """Start each operation that has a nonblocking form, and wait for it at once."""
    run = Call.run

    def start_and_wait(call: Call[Any]) -> Any:
        has_form = f"i{call.operation.name}" in notoken.__all__
        return notoken.wait(start_call(call)) if has_form else run(call)

    def call(x: Any) -> Any:
        with mock.patch.object(Call, "run", start_and_wait):
            return function(x)

    return jax.jit(call)


MODES: dict[str, Callable[[Function], Function]] = {
    "eager": eager,
    "jit": jax.jit,
    "loop": in_loop,
    "cond": in_cond,
    "auto_tokenize": tokenized,
    "nonblocking": nonblocking,
}
