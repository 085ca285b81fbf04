"""Waiting for what has been dispatched."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .jax_compat import devices_in_use, forget_runtime_tokens, without_mesh


def flush() -> None:
    """Wait until every operation that was called is done.

    Runs on every device a program that can only run after all others: JAX runs the
    programs of a device one after another. Raises the error of a program that failed,
    after which programs run again. It may be called while a program is traced.
    """
    try:
        jax.effects_barrier()
    except BaseException:
        # JAX would hand the failed token on to every program that follows.
        forget_runtime_tokens()
        raise
    finally:
        with jax.ensure_compile_time_eval(), without_mesh():
            for device in devices_in_use():
                jax.block_until_ready(_last(jax.device_put(jnp.zeros(()), device)))


@jax.jit
def _last(x: jax.Array) -> jax.Array:
    return x + 1
