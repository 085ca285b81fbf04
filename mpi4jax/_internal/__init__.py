"""The implementation of mpi4jax. Importing it binds MPI and registers with XLA."""

from __future__ import annotations

import atexit

from mpi4jax import _core

# First of all mpi4py: it initialises MPI, and finalises it after our own atexit handler.
from . import (
    bridge,  # noqa: F401
    config,
    decorators,  # noqa: F401
    device,  # noqa: F401
    dispatch,  # noqa: F401
    flush,
    jax_compat,
    utils,  # noqa: F401
    xla_bridge,  # noqa: F401
)

config.check()
jax_compat.check_jax_version()
_core.set_raise_on_error(config.choice("MPI4JAX_ON_ERROR", "abort", "raise") == "raise")


def _end() -> None:
    try:
        # No call may be under way when MPI is finalised.
        flush.flush()
    finally:
        _core.free_staging()


atexit.register(_end)
