"""Checks of arguments, with the texts that users of mpi4jax know."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np

from ..xla.jax_compat import Tracer
from .dtypes import check_dtype

F = TypeVar("F", bound=Callable[..., Any])

#: What JAX takes as an array.
ARRAY_TYPES = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)

#: The types of which every instance can be sent or is refused by JAX whenever it is passed.
#: Types of arrays are added as they are met.
PLAIN_TYPES: set[type] = {bool, int, float, complex}


def array(function: str, argument: str, value: Any) -> Any:
    """An argument that has to be an array, as JAX takes it.

    Compiled programs that have been called before take NumPy's arrays by their memory,
    whatever is in it, so each of these is looked at each time.
    """
    if type(value) is np.ndarray:
        check_dtype(function, argument, value.dtype)
        return value
    if isinstance(value, jax.Array):  # tracers, too
        PLAIN_TYPES.add(type(value))
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f'{function} got a masked array for argument "{argument}", of which the mask '
            "would be lost. Send x.filled(...), or x.data and x.mask by two calls"
        )
    if isinstance(value, np.ndarray):
        return array(function, argument, np.asarray(value))
    if isinstance(value, np.generic):
        check_dtype(function, argument, value.dtype)
        PLAIN_TYPES.add(type(value))
        return value
    if isinstance(value, (bool, int, float, complex)):
        return value
    if hasattr(value, "__jax_array__"):
        return array(function, argument, value.__jax_array__())
    reject(function, argument, "array or number", value)


def accepts(value: Any, expected: type) -> bool:
    """Whether a value is of a type. NumPy's abstract types stand for Python's, too."""
    if issubclass(expected, np.generic):
        return bool(np.issubdtype(type(value), expected))  # np.integer is not for bool
    return isinstance(value, expected)


def reject(
    function: str, argument: str, types: tuple[type, ...] | str, value: Any, hint: str = ""
) -> NoReturn:
    """Raise the TypeError for an argument of the wrong type.

    `types` are the expected ones, or a description of them, and a hint may say more.
    """
    expected: Any = types
    if not isinstance(types, str):
        names = list(dict.fromkeys(t.__qualname__ for t in types))
        expected = names[0] if len(names) == 1 else names
    if hint:
        hint = f" {hint}"
    elif isinstance(value, Tracer):
        hint = (
            "\n\nAn abstract tracer was passed where a concrete value is expected. "
            "Try using the static_argnums argument of jax.jit."
        )
    raise TypeError(
        f'{function} got unexpected type for argument "{argument}" '
        f"(expected: {expected}, got: {type(value)}).{hint}"
    )


def check_callable(function: str, argument: str, value: Any, parameters: str) -> None:
    """Raise TypeError if an argument is not one that can be called."""
    if not callable(value):
        hint = f"Pass a function of {parameters}, such as a lambda."
        reject(function, argument, "function", value, hint)


def check(function: str, argument: str, types: tuple[type, ...], value: Any) -> None:
    """Raise TypeError if an argument of `function` is not of one of these types."""
    if not any(accepts(value, expected) for expected in types):
        reject(function, argument, types, value)


def integer(function: str, argument: str, value: Any) -> int:
    """An argument that has to be an integer, of Python's or NumPy's, but no bool."""
    if type(value) is not int:
        check(function, argument, (np.integer,), value)
    return int(value)


def renamed_argument(function_name: str, old: str, new: str) -> Callable[[F], F]:
    """Have a function accept a keyword argument by its older name, too."""

    def decorate(function: F) -> F:
        def with_older_name(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(
                        f"{function_name} got both `{new}` and `{old}`, which is its older "
                        f"name, expected `{new}` alone"
                    )
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        renamed: Any = functools.update_wrapper(with_older_name, function)
        renamed.__signature__ = inspect.signature(function)
        # The forms with tokens call what is left of a function after `inspect.unwrap`.
        del renamed.__wrapped__
        return renamed

    return decorate
