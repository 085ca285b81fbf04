"""The order of MPI calls.

Every operation has an ordered effect, by which JAX chains the operations of a program with
an XLA token, through jit, scan, while and cond.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .jax_compat import (
    Effect,
    abstract_token,
    ffi_lowering,
    get_token,
    register_effect_type,
    set_token,
)


class OrderedMPIEffect(Effect):
    """Calls MPI, in order with all else that does. Equal, and hashed alike, everywhere."""

    def __str__(self) -> str:
        return "MPI"

    def __repr__(self) -> str:
        # JAX names the effect so where it refuses to run it on several devices.
        return (
            "MPI. An operation of mpi4jax can't be a part of a program that spans several "
            "devices or processes: use jax.lax.psum and its like in there, and call "
            "mpi4jax outside, on the part of an array that this process has, "
            "x.addressable_data(0)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderedMPIEffect)

    def __hash__(self) -> int:
        return int(hashlib.md5(b"OrderedMPIEffect").hexdigest(), 16)


ordered_effect = register_effect_type(OrderedMPIEffect, is_ordered=True)


def lower_in_order(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    *,
    avals_in: Sequence[Any] | None = None,
    avals_out: Sequence[Any] | None = None,
    aliases: dict[int, int] | None = None,
) -> list[Any]:
    """Make a custom call that comes after all other calls of MPI so far. Gives its results.

    Arguments:
        ctx: What JAX hands to a lowering rule.
        target: The name of the handler.
        operands: The values that the handler gets.
        attributes: The attributes that it gets.
        avals_in, avals_out: The types of operands and results, if these are not those of
            the primitive.
        aliases: The results that take the memory of an operand, by its position.

    """
    rule = ffi_lowering(target, has_side_effect=True, operand_output_aliases=aliases)
    with_token = ctx.replace(
        avals_in=[*(ctx.avals_in if avals_in is None else avals_in), abstract_token],
        avals_out=[*(ctx.avals_out if avals_out is None else avals_out), abstract_token],
    )
    *results, token = rule(
        with_token, *operands, get_token(ctx, ordered_effect), **attributes
    )
    set_token(ctx, ordered_effect, token)
    return results
