"""Complex results of operations in functions of `jax.checkpoint`.

Such a function is computed again in the backward pass, apart from its operations, whose
results are kept. JAX rounds what it keeps to the precision of its type, by a primitive that
takes real numbers only. So the real and the imaginary part of a complex result are kept in
its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from ..arguments.types import Array
from ..xla.jax_compat import (
    Equation,
    Primitive,
    Var,
    eval_equation,
    new_equation,
    register_checkpoint_rule,
    source_info_of,
)

#: An equation for the forward pass and one for the backward pass, whether each result is
#: unknown in the forward pass, and there in the backward pass, and the variables to keep.
Partial: TypeAlias = tuple[
    "Equation | None", "Equation | None", list[bool], list[bool], list[Var]
]


def keep_complex_results(primitive: Primitive) -> None:
    """Keep complex results of a primitive as real and imaginary parts."""
    register_checkpoint_rule(primitive, _partial_eval)


def _partial_eval(
    saveable: Callable[..., object],
    is_unknown: Sequence[bool],
    is_there: Sequence[bool],
    equation: Equation,
) -> Partial:
    results = equation.outvars
    no, yes = [False] * len(results), [True] * len(results)
    if any(is_unknown):
        pairs = zip(equation.invars, is_there, strict=True)
        to_keep = [x for x, has in pairs if not has and isinstance(x, Var)]
        return None, equation, yes, yes, to_keep
    if not any(jnp.iscomplexobj(x.aval) for x in results):
        return equation, None, no, no, []

    def forward(*operands: Array) -> tuple[Sequence[Array], list[Array]]:
        with source_info_of(equation):
            values = eval_equation(equation, operands)
        return values, [part for x in values for part in _parts(x)]

    def backward(*parts: Array) -> list[Array]:
        remaining = iter(parts)
        return [
            jax.lax.complex(next(remaining), next(remaining))
            if jnp.iscomplexobj(x.aval)
            else next(remaining)
            for x in results
        ]

    first, parts = new_equation(forward, equation.invars, results)
    second, _ = new_equation(backward, parts, results)
    return first, second, no, yes, parts


def _parts(x: Array) -> tuple[Array, ...]:
    return (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
