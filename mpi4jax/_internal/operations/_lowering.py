"""The calls of handlers in compiled programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpi4jax import _core

from ..mpi import device, meshes
from ..mpi.handles import Communicator
from ..xla import call_sites
from ..xla.effects import custom_call_target, lower_in_order
from ..xla.jax_compat import (
    GPU_PLATFORMS,
    LoweringContext,
    Primitive,
    Value,
    register_lowering,
)
from ..xla.programs import (
    LoweredProgram,
    aliased_operands,
    calls_with,
    forbid_aliasing,
    has_attribute,
    on_lowering,
)

#: The attributes that a handler gets: integers, or arrays of them.
Attributes: TypeAlias = "Mapping[str, np.int64 | np.ndarray[Any, np.dtype[np.int64]]]"


def lower_everywhere(primitive: Primitive, rule: Callable[..., Sequence[Value]]) -> None:
    """Register a rule that calls a handler, on all platforms that have handlers."""

    def lower_on_device(
        platform: str, ctx: LoweringContext, *operands: Value, **params: Any
    ) -> Sequence[Value]:
        device.prepare(platform)
        return rule(ctx, *operands, **params)

    register_lowering(primitive, rule, platform="cpu")
    for platform in GPU_PLATFORMS:
        on_device = functools.partial(lower_on_device, platform)
        register_lowering(primitive, on_device, platform=platform)


def call_in_program(
    ctx: LoweringContext,
    communicator: Communicator,
    name: str,
    operands: Sequence[Value],
    attributes: Attributes,
    envelopes: call_sites.Envelopes | None = None,
    awaited: call_sites.Envelopes | None = None,
    *,
    is_computed: bool = False,
    **types: Any,
) -> list[Value]:
    """Call a handler, in order with all other calls, and note the call's line.

    `envelopes` are the messages that the call sends and receives, and `awaited` those for
    which it is reported to wait. If `is_computed`, the last operand has ranks, and the
    handler is the one that takes such.
    """
    # A process that was forked would wait for XLA's compiler, whose threads it has not got.
    _core.check_available()
    communicator.has_messages |= envelopes is not None
    index = call_sites.note(ctx, name, communicator, envelopes, awaited)
    handler = f"{name}_computed" if is_computed else name
    attributes = {call_sites.CALL_SITE: np.int64(index), **attributes}
    return lower_in_order(ctx, custom_call_target(handler), operands, attributes, **types)


def _finish(program: LoweredProgram) -> None:
    """Complete the calls of a program when all of it is lowered."""
    if not call_sites.has_notes(program):
        return
    calls = calls_with(program, call_sites.CALL_SITE)
    notes = call_sites.take_notes(program)
    meshes.note_program(program, calls, notes)
    for call in calls:
        # XLA would have to copy an operand that others read as well before a result can
        # take its memory. It takes long to find that out: the time to compile grows with
        # the square of the number of such operations.
        is_shared = any(len(list(operand.uses)) > 1 for operand in aliased_operands(call))
        if is_shared and not has_attribute(call, call_sites.WITH_COPIES):
            forbid_aliasing(call)
    call_sites.finish_program(program, calls, notes)


on_lowering(_finish)
