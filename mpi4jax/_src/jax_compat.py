"""The names of JAX that are not public, and what differs between its versions.

Nothing else in this package imports from `jax._src` or asks for JAX's version.
"""

from __future__ import annotations

import inspect
import re
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import dispatch, xla_bridge
from jax._src.core import (
    abstract_token,
    eval_jaxpr,
    jaxprs_in_params,
    trace_state_clean,
)
from jax._src.effects import (
    Effect,
    control_flow_allowed_effects,
    custom_derivatives_allowed_effects,
    lowerable_effects,
    ordered_effects,
    remat_allowed_effects,
)
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive, Token
from jax.ffi import ffi_lowering, register_ffi_target

from . import config

__all__ = [
    "ClosedJaxpr",
    "Effect",
    "Jaxpr",
    "Primitive",
    "ShapedArray",
    "Token",
    "Tracer",
    "abstract_token",
    "ad",
    "batching",
    "bind_again",
    "check_jax_version",
    "devices_in_use",
    "eval_jaxpr",
    "ffi_lowering",
    "forget_runtime_tokens",
    "hlo",
    "jaxprs_in_params",
    "lower_jaxpr",
    "module_key",
    "never_drop",
    "register_effect",
    "register_ffi_target",
    "register_lowering",
    "tokens",
    "top_level_of_main",
    "trace_state_clean",
    "versiontuple",
]

LATEST_TESTED_JAX = "0.12.0"


def versiontuple(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, anything behind the numbers left out."""
    numbers = re.match(r"[0-9.]*", version)
    assert numbers is not None
    return tuple(int(n) for n in numbers.group().rstrip(".").split("."))[:3]


def check_jax_version() -> None:
    """Warn if JAX is newer than what this release was tested with."""
    name = "MPI4JAX_NO_WARN_JAX_VERSION"
    if config.flag(name):
        return
    if versiontuple(jax.__version__) > versiontuple(LATEST_TESTED_JAX):
        warnings.warn(
            f"\nThis release of mpi4jax was tested with JAX up to {LATEST_TESTED_JAX}, "
            f"but you have {jax.__version__}. Should you run into problems, use the "
            f"tested JAX:\n\n"
            f"    $ pip install jax=={LATEST_TESTED_JAX}\n\n"
            f"or a newer mpi4jax:\n\n"
            f"    $ pip install -U mpi4jax\n\n"
            f"Set the environment variable `{name}=1` to silence this warning.",
            stacklevel=2,
        )


def register_effect(effect: Effect, *, ordered: bool) -> Effect:
    """Tell JAX where programs with this effect may appear: everywhere."""
    kind = type(effect)
    for allowed in (
        lowerable_effects,
        control_flow_allowed_effects,
        custom_derivatives_allowed_effects,
        remat_allowed_effects,
    ):
        allowed.add_type(kind)
    if ordered:
        ordered_effects.add_type(kind)
    return effect


# JAX >= 0.7 may lower equal equations once, out of line. Ours look at where they are.
_UNCACHED = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)


def register_lowering(
    primitive: Primitive, rule: Callable[..., Any], platform: str | None = None
) -> None:
    mlir.register_lowering(primitive, rule, platform=platform, **_UNCACHED)


def never_drop(
    primitive: Primitive, rewrite: Callable[[Any], Any] = lambda eqn: eqn
) -> None:
    """Keep JAX from dropping calls of `primitive` whose results are unused.

    `rewrite` is applied to the call when a program is about to be compiled.
    """

    def rule(*liveness_and_eqn: Any) -> tuple[list[bool], Any]:
        # JAX >= 0.11 passes two lists of what is used, older versions one.
        eqn = liveness_and_eqn[-1]
        return [True] * len(eqn.invars), rewrite(eqn)

    pe.dce_rules[primitive] = rule


class tokens:
    """The XLA tokens by which JAX orders the effects of a program being lowered."""

    @staticmethod
    def get(ctx: Any, effect: Effect) -> Any:
        return ctx.tokens_in.get(effect)

    @staticmethod
    def set(ctx: Any, effect: Effect, token: Any) -> None:
        new = mlir.TokenSet({effect: token})
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(new))


def module_key(ctx: Any) -> Any:
    """An object of which there is one for each module being lowered."""
    return ctx.module_context.shape_poly_state


def top_level_of_main() -> bool:
    """Whether what is lowered now goes straight into a module's main function."""
    owner = ir.InsertionPoint.current.block.owner.operation
    attributes = owner.attributes
    return (
        owner.name == "func.func"
        and "sym_visibility" in attributes
        and ir.StringAttr(attributes["sym_visibility"]).value == "public"
    )


def devices_in_use() -> list[jax.Device]:
    """The devices of this process on which a program may have run."""
    if not xla_bridge.backends_are_initialized():
        return []
    clients = xla_bridge.backends().values()
    return [device for client in clients for device in client.local_devices()]


def forget_runtime_tokens() -> None:
    """Forget the tokens by which JAX orders one effectful program after another."""
    dispatch.runtime_tokens.clear()


def bind_again(
    primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]
) -> Sequence[Any]:
    """Bind a primitive with the parameters that one of its equations has."""
    functions: Sequence[Any] = ()
    params = primitive.get_bind_params(params)
    if isinstance(params, tuple):  # JAX < 0.8 passes functions as arguments
        functions, params = params
    out = primitive.bind(*functions, *operands, **params)
    return out if primitive.multiple_results else [out]


_SUBCOMP_PARAMETERS = inspect.signature(mlir.jaxpr_subcomp).parameters


def lower_jaxpr(
    ctx: Any,
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    token: Any,
    effect: Effect,
) -> tuple[Sequence[Any], Any]:
    """Lower `jaxpr` in place, its ordered `effect` starting from `token`.

    Returns the results and the token after them. Other ordered effects go on from, and
    back to, the tokens of `ctx`.
    """
    # Functions lowered here must not be shared with the rest of the module, where the
    # same ones may be called in another order.
    fresh = {
        name: type(getattr(ctx.module_context, name))()
        for name in ("cached_primitive_lowerings", "lowering_cache")
        if hasattr(ctx.module_context, name)
    }
    optional: dict[str, Any] = {
        "const_lowering": getattr(ctx, "const_lowering", None),
        "outer_traceback": getattr(ctx, "traceback", None),
    }
    outer = dict(ctx.tokens_in.items())
    out, tokens_out = mlir.jaxpr_subcomp(
        ctx.module_context.replace(**fresh),
        jaxpr,
        ctx.name_stack,
        mlir.TokenSet({**outer, effect: token}),
        consts,
        *args,
        dim_var_values=ctx.dim_var_values,
        **{k: v for k, v in optional.items() if k in _SUBCOMP_PARAMETERS},
    )
    if outer:
        ctx.set_tokens_out(mlir.TokenSet({e: tokens_out.get(e) for e in outer}))
    return out, tokens_out.get(effect)


#: A mapping whose entries go with the module that they belong to.
PerModule = weakref.WeakKeyDictionary
