"""The decorator with which the original checks arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mpi4jax._internal.arguments.checks import TRACER_HINT, accepts
from mpi4jax._internal.xla.jax_compat import Tracer

P = ParamSpec("P")
R = TypeVar("R")

Types = type | tuple[type, ...] | list[type]


def _classes(expected: Types) -> tuple[type, ...]:
    return (expected,) if isinstance(expected, type) else tuple(expected)


def _check(function: str, argument: str, expected: tuple[type, ...], value: object) -> None:
    if any(accepts(value, each) for each in expected):
        return
    names = list(dict.fromkeys(each.__qualname__ for each in expected))
    hint = f"\n\n{TRACER_HINT}" if isinstance(value, Tracer) else ""
    raise TypeError(
        f'{function} got unexpected type for argument "{argument}" '
        f"(expected: {names[0] if len(names) == 1 else names}, got: {type(value)}).{hint}"
    )


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
        classes = {argument: _classes(expected) for argument, expected in types.items()}
        for argument in types:
            if argument not in parameters:
                raise ValueError(
                    f"enforce_types decorator for {name} "
                    f'got unexpected argument "{argument}"'
                )

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = dict(zip(parameters, args, strict=False)) | kwargs
            for argument, expected in classes.items():
                if argument in arguments:
                    _check(name, argument, expected, arguments[argument])
            return function(*args, **kwargs)

        return checked

    return decorator
