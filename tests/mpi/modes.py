"""The ways in which a program can call an operation."""

import jax
import jax.numpy as jnp

from mpi4jax.experimental import auto_tokenize


def eager(function):
    return function


def in_loop(function):
    """Call it three times in a loop, and give back the last result."""

    @jax.jit
    def loop(x):
        shape = jax.eval_shape(function, x)
        start = jnp.zeros(shape.shape, shape.dtype)
        return jax.lax.fori_loop(0, 3, lambda i, _: function(x), start)

    return loop


def in_cond(function):
    """Call it in the branch that is taken."""

    @jax.jit
    def branch(x, condition):
        def other(x):
            return -1 * jnp.ones_like(function_shape(x))

        def function_shape(x):
            shape = jax.eval_shape(function, x)
            return jnp.zeros(shape.shape, shape.dtype)

        return jax.lax.cond(condition, function, other, x)

    return lambda x: branch(x, jnp.asarray(True))


def tokenized(function):
    return jax.jit(auto_tokenize(function))


MODES = {
    "eager": eager,
    "jit": jax.jit,
    "loop": in_loop,
    "cond": in_cond,
    "auto_tokenize": tokenized,
}
