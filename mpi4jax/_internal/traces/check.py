"""The lines of eager calls, which the core can't know by itself.

With MPI4JAX_CHECK, processes compare their calls before MPI is called
(`rust/src/ops/check/`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax

from mpi4jax import _core

from ..operations._eager import wrap_eager_calls
from ..xla.call_sites import describe_stack, frames_of


def _with_line(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def checked(*args: Any, **params: Any) -> Any:
        _core.set_eager_line(describe_stack(frames_of(sys._getframe())))
        # The next call has another line, so this one has to be over by then.
        return jax.block_until_ready(run(*args, **params))

    return checked


def _naming_line(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def named(*args: Any, **params: Any) -> Any:
        # A call that XLA is still to make then has the line of the one after it, which is
        # close, and not worth waiting for.
        _core.set_eager_line(describe_stack(frames_of(sys._getframe())))
        return run(*args, **params)

    return named


def note_eager_lines() -> None:
    """Have the core know the lines of eager calls, for where MPI crashes in one."""
    wrap_eager_calls(_naming_line)


def enable() -> None:
    """Compare all calls from now on."""
    _core.set_check(True)
    wrap_eager_calls(_with_line)
