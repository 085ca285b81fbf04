"""Waiting for all dispatched programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .jax_compat import devices_in_use, forget_runtime_tokens, without_mesh


def flush() -> None:
    """Wait until every operation that was called is done.

    On each device, this runs a program and waits for it: JAX runs the programs of a device
    one after another. The error of a program that failed is raised, and later programs run
    again. The call is allowed while a program is traced.
    """
    try:
        jax.effects_barrier()
    except BaseException:
        # JAX would pass the failed token to every later program.
        forget_runtime_tokens()
        raise
    finally:
        with jax.ensure_compile_time_eval(), without_mesh():
            for device in devices_in_use():
                jax.block_until_ready(_last(jax.device_put(jnp.zeros(()), device)))


@jax.jit
def _last(x: jax.Array) -> jax.Array:
    return x + 1
