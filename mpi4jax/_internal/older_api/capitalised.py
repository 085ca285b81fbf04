"""The names that operations had in mpi4jax 0.2."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def capitalised(function: Callable[..., R]) -> Callable[..., R]:
    """The form that an operation had in mpi4jax 0.2: all arguments may be positional.

    It is made from the form with tokens.
    """
    name = function.__name__.capitalize()
    parameters = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def deprecated(*args: object, **kwargs: object) -> R:
        warnings.warn(
            f"mpi4jax.{name} is deprecated, use mpi4jax.{function.__name__} instead",
            FutureWarning,
            stacklevel=2,
        )
        return function(**dict(zip(parameters, args, strict=False)), **kwargs)

    deprecated.__name__ = name
    return deprecated
