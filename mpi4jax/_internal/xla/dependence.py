"""Values that depend on arrays for JAX, and on nothing for XLA.

JAX differentiates, transposes and maps what a value depends on. A process whose value
needs nothing of an operation has to take part in its transpose nevertheless, as the other
processes do.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, inline=True)
def depend(value: jax.Array, *arrays: jax.Array) -> jax.Array:
    """The value, with a dependence on arrays, which may have other shapes and types."""
    for x in arrays:
        nothing = jnp.sum(jnp.ravel(x)[:0])
        if not jnp.issubdtype(value.dtype, jnp.complexfloating):
            nothing = nothing.real
        nothing = jnp.broadcast_to(nothing.astype(value.dtype), value.shape)
        # Not jnp.where, which gives either of them if they have no elements.
        value = jax.lax.select(np.bool_(False), nothing, value)
    return value


def zeros_after(result: jax.Array) -> jax.Array:
    """Zeros like an operation's result, which depend on that."""
    return depend(jnp.zeros_like(result), result)
