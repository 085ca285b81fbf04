"""The environment variables that mpi4jax reads."""

from __future__ import annotations

import os

TRUTHY = ("1", "true", "on", "yes")
FALSY = ("0", "false", "off", "no")


def is_truthy(value: str) -> bool:
    return value.lower() in TRUTHY


def is_falsy(value: str) -> bool:
    return value.lower() in FALSY


def flag(name: str) -> bool | None:
    """The on/off variable `name`, None if it is not set (or empty)."""
    value = os.environ.get(name, "")
    if is_truthy(value):
        return True
    if is_falsy(value):
        return False
    if value:
        accepted = ", ".join(TRUTHY + FALSY)
        raise ValueError(
            f"the environment variable {name} is {value!r}, "
            f"expected one of: {accepted} (in any case)"
        )
    return None


def choice(name: str, *accepted: str) -> str:
    """The variable `name`, the first of the accepted values if it is not set."""
    value = os.environ.get(name) or accepted[0]
    if value not in accepted:
        raise ValueError(
            f"the environment variable {name} is {value!r}, "
            f"expected one of: {', '.join(accepted)}"
        )
    return value


def number(name: str) -> int | None:
    """The variable `name`, which is a number of bytes, None if it is not set (or empty)."""
    value = os.environ.get(name)
    if not value:
        return None
    if not (value.isascii() and value.isdigit()):
        raise ValueError(
            f"the environment variable {name} is {value!r}, expected a number of bytes"
        )
    return int(value)


def check() -> None:
    """Raise on a variable whose value is not understood, whoever reads it later."""
    for name in (
        "MPI4JAX_DEBUG",
        "MPI4JAX_FAST_DISPATCH",
        "MPI4JAX_NO_WARN_JAX_VERSION",
        "MPI4JAX_USE_CUDA_MPI",
        "MPI4JAX_USE_SYCL_MPI",
        "MPI4JAX_PREFER_NOTOKEN",
        "MPI4JAX_SKIP_ABI_CHECK",
    ):
        flag(name)
    choice("MPI4JAX_API", "token", "notoken")
    choice("MPI4JAX_ON_ERROR", "abort", "raise")
    number("MPI4JAX_STAGING_CHUNK")
    number("MPI4JAX_STAGING_LIMIT")
