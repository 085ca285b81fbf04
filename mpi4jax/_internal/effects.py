"""The order of MPI calls.

Every operation has an ordered effect, by which JAX chains the operations of a program with
an XLA token, through jit, scan, while and cond.
"""

from __future__ import annotations

import hashlib

from .jax_compat import Effect, register_effect_type


class OrderedMPIEffect(Effect):
    """Calls MPI, in order with all else that does. Equal, and hashed alike, everywhere."""

    def __str__(self) -> str:
        return "MPI"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderedMPIEffect)

    def __hash__(self) -> int:
        return int(hashlib.md5(b"OrderedMPIEffect").hexdigest(), 16)


ordered_effect = register_effect_type(OrderedMPIEffect, is_ordered=True)
