"""Names of JAX, as the original imports them. For new programs: `mpi4jax.extend`."""

from collections.abc import Callable
from typing import Any

from mpi4jax._internal.versions import versiontuple
from mpi4jax._internal.xla.jax_compat import (
    Effect,
    Primitive,
    Token,
    abstract_token,
    check_jax_version,
    get_token,
    register_effect_type,
    register_ffi_target,
    set_token,
    token_type,
)
from mpi4jax._internal.xla.jax_compat import register_lowering as _register_lowering

__all__ = [
    "EffectType",
    "Primitive",
    "Token",
    "abstract_token",
    "check_jax_version",
    "get_token_effect",
    "register_custom_call_target",
    "register_effect",
    "register_lowering",
    "set_token_effect",
    "token_type",
    "versiontuple",
]

EffectType = Effect
get_token_effect = get_token
set_token_effect = set_token


def register_effect(EffectType: type[Effect], ordered: bool = False) -> Effect:
    """Make an effect of this type, and tell JAX where it may appear: everywhere."""
    return register_effect_type(EffectType, is_ordered=ordered)


def register_lowering(
    prim: Primitive, rule: Callable[..., Any], platform: str = "cpu"
) -> None:
    """Register a lowering rule, if JAX knows the platform."""
    try:
        _register_lowering(prim, rule, platform)
    except NotImplementedError:
        if platform == "cpu":
            raise


def register_custom_call_target(
    name: str, fn: Any, *, platform: str, api_version: int = 1
) -> None:
    """Register a handler with XLA."""
    register_ffi_target(name, fn, platform=platform, api_version=api_version)
