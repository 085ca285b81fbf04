"""Calls on a communicator of one process, which programs leave out.

Such a call only copies operands to results. It is made nevertheless where something shows
calls (debug lines, checks, timelines and profiles), and in programs that are exported,
which more processes may run.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from mpi4jax import _core

from ..arguments.types import Array
from ..environment import settings
from ..xla.effects import leave_out
from ..xla.jax_compat import LoweringContext, ShapedArray, Value, is_for_export, lower_with
from ._arguments import ANY_SOURCE, ANY_TAG, PROC_NULL
from ._messages import Messages
from ._operation import Operation

#: Whether a program lacks calls that are to be shown from now on.
_has_left_out = False
#: Number of recordings under way that show calls.
_recording_count = 0


def set_logging(enable: bool) -> None:
    """Turn the debug lines on or off."""
    _core.set_logging(enable)
    if enable:
        _compile_again()


def begin_recording() -> None:
    """Make all calls from now on, which a recording shows, until it ends."""
    global _recording_count
    _recording_count += 1
    _compile_again()


def end_recording() -> None:
    global _recording_count
    _recording_count -= 1


def _compile_again() -> None:
    """Let JAX compile all programs again, if calls were left out of some."""
    global _has_left_out
    if _has_left_out:
        _has_left_out = False
        jax.clear_caches()


def leaves_out_calls(ctx: LoweringContext, size: int) -> bool:
    """Whether a program leaves out calls among this number of processes."""
    are_shown = (
        settings.check
        or settings.trace is not None
        or _core.get_logging()
        or _recording_count > 0
    )
    return size == 1 and not are_shown and not is_for_export(ctx)


def sources_alone(ctx: LoweringContext, operation: Operation) -> list[int] | None:
    """The index of the operand that is each result, where a program leaves out the call.

    None if it makes the call.
    """
    if not leaves_out_calls(ctx, operation.communicator.size):
        return None
    messages = operation.messages()
    if messages is not None:
        may_match = not operation.communicator.has_messages and not operation.has_status
        return _matches(*messages) if may_match else None
    if not operation.is_collective or operation.count_operands or operation.has_neighbors:
        return None
    return [operation.forwarded_operand() or 0] * len(ctx.avals_out)


def lower_alone(
    ctx: LoweringContext, operation: Operation, operands: Sequence[Value]
) -> list[Value] | None:
    """The results of a call that a program leaves out, None if it makes the call."""
    global _has_left_out
    sources = sources_alone(ctx, operation)
    if sources is None:
        return None
    avals = [ctx.avals_in[n] for n in sources]
    if any(map(_differ, avals, ctx.avals_out)):
        return None
    _has_left_out = True
    leave_out(ctx, operation.name)

    def reshape(*arrays: Array) -> list[Array]:
        pairs = zip(arrays, ctx.avals_out, strict=True)
        return [jnp.reshape(x, aval.shape) for x, aval in pairs]

    return lower_with(ctx, reshape, [operands[n] for n in sources], avals)


def _differ(x: ShapedArray, y: ShapedArray) -> bool:
    return (x.size, x.dtype) != (y.size, y.dtype)


def _matches(sent: Messages, received: Messages) -> list[int] | None:
    """The index of the operand that each receive gets, None if a message has one end only.

    Messages from PROC_NULL leave the operand that is like the result as it is.
    """
    first, remaining = 0, []
    for rank, tag, count in zip(*sent, strict=True):
        if rank != PROC_NULL:
            remaining.append((tag, range(first, first + count)))
        first += count
    matches: list[int] = []
    for rank, tag, count in zip(*received, strict=True):
        leaves = range(first, first + count)
        first += count
        if rank in (0, ANY_SOURCE):
            fitting = (m for m in remaining if tag in (m[0], ANY_TAG))
            message = next(fitting, None)
            if message is None or len(message[1]) != count:
                return None
            remaining.remove(message)
            leaves = message[1]
        elif rank != PROC_NULL:
            return None
        matches += leaves
    return None if remaining else matches
