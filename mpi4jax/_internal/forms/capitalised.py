"""The names that operations had in mpi4jax 0.2."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from ...experimental import tokens


def capitalised(name: str) -> Callable[..., Any]:
    """The form that an operation had in mpi4jax 0.2: all arguments may be positional."""
    function = getattr(tokens, name.lower())
    parameters = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def deprecated(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            f"mpi4jax.{name} is deprecated, use mpi4jax.{name.lower()} instead",
            FutureWarning,
            stacklevel=2,
        )
        return function(**dict(zip(parameters, args, strict=False)), **kwargs)

    deprecated.__name__ = name
    return deprecated
