"""Functions that primitives of Equinox hold, as lineax's `linear_solve` holds an operator.

These primitives do not tell JAX of the effects of what they hold. JAX has no token there
for calls of MPI then, and would not keep them in order. But their lowering is that of a
function of JAX's (`mlir.lower_fun`), which passes on the tokens of the equation. So all
that is missing is the effect in the equation's type: it is found by tracing the function,
which is what the primitive does to find its type anyway.

Nothing is imported. Where Equinox keeps no such list of primitives, calls in a function
that is held stay an error (`effects.HIDDEN`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .effects import ordered_effect
from .jax_compat import Effect, Primitive, ShapedArray

#: The module of Equinox's primitives, and its table of their functions by primitive.
_MODULE, _TABLE = "equinox.internal._primitive", "_vprim_impl_registry"

#: The primitives that declare their effects.
_declared: set[Primitive] = set()


def declare_held_effects() -> None:
    """Declare that primitives call MPI, if the functions that they hold do.

    It is called while an operation is traced, as those in a held function are before the
    function is passed to the primitive.
    """
    table: Mapping[Primitive, Callable[..., Any]]
    table = getattr(sys.modules.get(_MODULE), _TABLE, {})
    if len(table) == len(_declared):
        return
    for primitive, function in table.items():
        if primitive not in _declared:
            _declared.add(primitive)
            _declare(primitive, function)


def _declare(primitive: Primitive, function: Callable[..., Any]) -> None:
    def abstract_eval(
        *avals: ShapedArray, **params: object
    ) -> tuple[list[ShapedArray], set[Effect]]:
        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        traced = jax.make_jaxpr(functools.partial(function, **params))(*types)
        results = [ShapedArray(aval.shape, aval.dtype) for aval in traced.out_avals]
        return results, {ordered_effect} & traced.effects

    primitive.def_effectful_abstract_eval(abstract_eval)
