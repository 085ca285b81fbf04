"""MPI4JAX_CHECK: processes compare their calls before MPI is called.

The core does that (`rust/src/ops/check.rs`). What it can't know is the line of an eager
call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax

from mpi4jax import _core

from .lines import described, frames_of
from .operation import wrap_eager_calls


def _with_line(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def checked(*args: Any, **params: Any) -> Any:
        _core.set_eager_line(described(frames_of(sys._getframe())))
        # The next call has another line, so this one has to be over by then.
        return jax.block_until_ready(run(*args, **params))

    return checked


def enable() -> None:
    """Compare all calls from now on."""
    _core.set_check(True)
    wrap_eager_calls(_with_line)
