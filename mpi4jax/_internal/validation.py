"""Checks of argument types, with the texts that users of mpi4jax know."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import jax
import numpy as np

from .jax_compat import Tracer

P = ParamSpec("P")
R = TypeVar("R")

#: What JAX takes as an array.
ARRAY_TYPES = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)

Types = type | tuple[type, ...] | list[type]


def _accepts(value: Any, expected: type) -> bool:
    # numpy's abstract types stand for Python's too, but np.integer not for bool.
    if issubclass(expected, np.generic):
        return bool(np.issubdtype(type(value), expected))
    return isinstance(value, expected)


def reject(function: str, argument: str, types: tuple[type, ...], value: Any) -> NoReturn:
    """Raise the TypeError for an argument of the wrong type."""
    names: Any = [t.__qualname__ for t in types]
    if len(names) == 1:
        names = names[0]
    hint = ""
    if isinstance(value, Tracer):
        hint = (
            "\n\nAn abstract tracer was passed where a concrete value is expected. "
            "Try using the static_argnums argument of jax.jit."
        )
    raise TypeError(
        f'{function} got unexpected type for argument "{argument}" '
        f"(expected: {names}, got: {type(value)}).{hint}"
    )


def check(function: str, argument: str, types: tuple[type, ...], value: Any) -> None:
    """Raise TypeError if an argument of `function` is not of one of these types."""
    if not any(_accepts(value, expected) for expected in types):
        reject(function, argument, types, value)


def integer(function: str, argument: str, value: Any) -> int:
    """An argument that has to be an integer, of Python's or NumPy's, but no bool."""
    if type(value) is not int:
        check(function, argument, (np.integer,), value)
    return int(value)


def enforce_types(**types: Types) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise TypeError if an argument is not of the given type(s).

    A subclass of `np.generic` stands for all of its kind: `np.integer` accepts `int`
    and `np.uint64`.

    >>> @enforce_types(n=np.integer)
    ... def repeat(text, n): ...
    >>> repeat("ab", 1.5)
    Traceback (most recent call last):
    TypeError: repeat got unexpected type for argument "n" (expected: integer, got: ...
    """

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        parameters = inspect.signature(function).parameters
        for argument in types:
            if argument not in parameters:
                raise ValueError(
                    f"enforce_types decorator for {name} "
                    f'got unexpected argument "{argument}"'
                )

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = dict(zip(parameters, args, strict=False)) | kwargs
            for argument, expected in types.items():
                if argument in given:
                    one_or_more = (
                        expected if isinstance(expected, (tuple, list)) else [expected]
                    )
                    check(name, argument, tuple(one_or_more), given[argument])
            return function(*args, **kwargs)

        return checked

    return decorator
