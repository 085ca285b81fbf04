"""The order of MPI calls.

Every operation has an ordered effect, for which JAX chains the operations of a program by
an XLA token, through jit, scan, while and cond.

On GPUs the calls themselves are chained by a byte of data instead:

    token -> order -> byte -> call -> byte -> call -> byte -> order -> token

The handler `order` does nothing. A byte is a dependency that all of XLA respects, while a
token gets lost in CUDA graphs and aborts the compiler where it meets a slice
(docs/xla-token.md). No code reads or writes the byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from mpi4jax._override import override

from .jax_compat import (
    CALLS_ON_SLICES_ARE_REPEATED,
    Aval,
    Effect,
    LoweringContext,
    ShapedArray,
    Value,
    abstract_token,
    ffi_lowering,
    get_token,
    has_token,
    is_automatic,
    is_for_gpus,
    lowered_equations,
    operand_of_call,
    optimization_barrier,
    register_effect_type,
    set_token,
)
from .programs import listen


def custom_call_target(handler: str) -> str:
    """The name of a handler in a compiled program, as in mpi4jax 0.9."""
    return f"mpi_{handler}_ffi"


#: Description of the programs on several devices that may have operations, for errors.
ALLOWED_PROGRAMS = (
    "In a program that spans several devices or processes, operations of mpi4jax have to "
    "be inside of jax.shard_map over all axes of the mesh: "
    "jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...) with a function f that calls "
    "them. Or call them outside of it, on the part of an array that this process has, "
    "x.addressable_data(0)"
)

#: The refusal of an operation in a function whose effects a primitive has not declared.
HIDDEN = (
    "was called in a function that {} takes and whose effects it hides from JAX, which "
    "does not keep the call in order with others then. Call it outside of such a function, "
    "or in functions of JAX's own, such as jax.lax.custom_linear_solve and "
    "jax.lax.while_loop. For linear systems, mpi4jax.linalg has solvers"
)


class OrderedMPIEffect(Effect):
    """The effect of calling MPI, in order with all other calls.

    Effects are equal in all processes, and hashed alike.
    """

    @override
    def __str__(self) -> str:
        return "MPI"

    @override
    def __repr__(self) -> str:
        # An older JAX names the effect so where it refuses to run it on several devices
        # (NotImplementedError), and where it has no token for it (KeyError).
        return (
            f"MPI. {ALLOWED_PROGRAMS}. The former needs JAX 0.9.1 or later. If this is a "
            f"KeyError, an operation {HIDDEN.format('a primitive')}"
        )

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderedMPIEffect)

    @override
    def __hash__(self) -> int:
        return int(hashlib.md5(b"OrderedMPIEffect").hexdigest(), 16)


ordered_effect = register_effect_type(OrderedMPIEffect, is_ordered=True)


def get_ordered_token(ctx: LoweringContext) -> Value:
    """The XLA token of the calls so far. `ctx` is the context of a lowering rule."""
    listen(ctx)
    _check_not_hidden(ctx)
    return get_token(ctx, ordered_effect)


def leave_out(ctx: LoweringContext, handler: str) -> None:
    """Leave out the call of a handler, which a program without an order can't have."""
    _check_not_automatic(ctx, custom_call_target(handler))
    set_token(ctx, ordered_effect, get_ordered_token(ctx))


def _check_not_automatic(ctx: LoweringContext, target: str) -> None:
    """Raise ValueError in a program that JAX divides over several devices."""
    if is_automatic(ctx):
        raise ValueError(f"{target}: {ALLOWED_PROGRAMS}")


def _check_not_hidden(ctx: LoweringContext) -> None:
    """Raise NotImplementedError in a function whose effects a primitive has not declared.

    In such a function JAX has no token, or has none at the begin of a loop.
    """
    hiding = next((x for x in lowered_equations() if ordered_effect not in x.effects), None)
    if hiding is None and has_token(ctx, ordered_effect):
        return
    primitive = "a primitive" if hiding is None else f"the primitive {hiding.primitive}"
    operation = "an operation" if ctx.primitive is None else ctx.primitive.name
    name = operation.removesuffix("_mpi")
    raise NotImplementedError(f"{name} {HIDDEN.format(primitive)}")


#: The type of the data that chains calls on GPUs.
BYTE = ShapedArray((1,), np.dtype(np.uint8))
_ORDER = custom_call_target("order")


def lower_in_order(
    ctx: LoweringContext,
    target: str,
    operands: Sequence[Value],
    attributes: Mapping[str, object],
    *,
    avals_in: Sequence[Aval] | None = None,
    avals_out: Sequence[Aval] | None = None,
    aliases: dict[int, int] | None = None,
    takes_byte: bool = True,
    takes_slices: bool = True,
) -> list[Value]:
    """Make a custom call that runs after all calls of MPI so far. Return its results.

    Arguments:
        ctx: The context of the lowering rule.
        target: The name of the handler.
        operands: The operands of the handler.
        attributes: The attributes of the handler.
        avals_in, avals_out: The types of operands and results, if they differ from the
            types of the primitive.
        aliases: The index of each result that takes the memory of an operand, by the index
            of the operand.
        takes_byte: Whether the last operand and the last result on GPUs are the byte, and
            not XLA's token as on CPUs.
        takes_slices: Whether XLA may pass addresses of slices in larger arrays to the
            handler. Operands and results may overlap then, and aliases are not kept.

    """
    _check_not_automatic(ctx, target)
    is_on_gpu = is_for_gpus(ctx)
    has_byte = is_on_gpu and takes_byte
    has_barriers = is_on_gpu and (CALLS_ON_SLICES_ARE_REPEATED or not takes_slices)
    token = get_ordered_token(ctx)
    aval, order = (BYTE, _byte_of(ctx, token)) if has_byte else (abstract_token, token)
    rule = ffi_lowering(target, has_side_effect=True, operand_output_aliases=aliases)
    ordered = ctx.replace(
        avals_in=[*(ctx.avals_in if avals_in is None else avals_in), aval],
        avals_out=[*(ctx.avals_out if avals_out is None else avals_out), aval],
    )
    if has_barriers:
        operands = optimization_barrier(operands)
    *results, order = rule(ordered, *operands, order, **attributes)
    token = _convert(ctx, order, BYTE, abstract_token) if has_byte else order
    set_token(ctx, ordered_effect, token)
    return optimization_barrier(results) if has_barriers else results


def _byte_of(ctx: LoweringContext, token: Value) -> Value:
    """The byte from which a token was made, or a byte made from the token."""
    byte = operand_of_call(token, _ORDER)
    return _convert(ctx, token, abstract_token, BYTE) if byte is None else byte


def _convert(ctx: LoweringContext, order: Value, aval: Aval, result_aval: Aval) -> Value:
    converted = ctx.replace(avals_in=[aval], avals_out=[result_aval])
    (result,) = ffi_lowering(_ORDER)(converted, order)
    return result
