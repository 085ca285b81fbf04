"""Values that depend on arrays for JAX, and on nothing for XLA.

JAX differentiates, transposes and maps the operations on which a value depends. A process
whose value does not need an operation has to take part in the operation's transpose
nevertheless, as the other processes do.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .jax_compat import inlined


@inlined
def depend(value: jax.Array, *arrays: jax.Array) -> jax.Array:
    """The value, with a dependence on arrays of any shapes and types."""
    for x in arrays:
        empty = jnp.ravel(x)[:0]
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            empty = empty.astype(jnp.int32)  # JAX does not add short integers
        nothing = jnp.sum(empty)
        if not jnp.issubdtype(value.dtype, jnp.complexfloating):
            nothing = nothing.real
        nothing = jnp.broadcast_to(nothing.astype(value.dtype), value.shape)
        # Not jnp.where, which returns either of the two if they have no elements.
        value = jax.lax.select(np.bool_(False), nothing, value)
    return value


def zeros_after(result: jax.Array) -> jax.Array:
    """Zeros like an operation's result, with a dependence on the result."""
    return depend(jnp.zeros_like(result), result)
