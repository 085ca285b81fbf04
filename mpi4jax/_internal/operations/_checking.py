"""Comparing eager calls, whose lines the core can't know by itself.

With MPI4JAX_CHECK, processes compare their calls before MPI is called
(`rust/src/ops/check/`), and name the lines of those that differ.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

from mpi4jax import _core

from ..arguments.types import PyTree
from ..xla.call_sites import current_line
from ._eager import ArrayOrLeaves, EagerCall, EagerRun, wrap_eager_calls


def _note_line(run: EagerRun) -> EagerRun:
    @functools.wraps(run)
    def noting(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
        # A call that XLA is still to make then has the line of the one after it, which is
        # close, and not worth waiting for.
        _core.set_eager_line(current_line())
        return run(call, operands)

    return noting


def _await_result(run: EagerRun) -> EagerRun:
    @functools.wraps(run)
    def awaiting(call: EagerCall, operands: Sequence[ArrayOrLeaves]) -> PyTree:
        return jax.block_until_ready(run(call, operands))

    return awaiting


def note_lines() -> None:
    """Tell the core the lines of eager calls, for reports of crashes in MPI."""
    wrap_eager_calls(_note_line)


def check_calls() -> None:
    """Compare all calls from now on, and have the core know the lines of eager ones."""
    _core.set_check(True)
    # A call has to be over before the next one notes another line.
    wrap_eager_calls(_await_result)
    wrap_eager_calls(_note_line)
