"""Checks of arguments, with the texts that users of mpi4jax know."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import NoReturn

import jax
import numpy as np

from ..xla.jax_compat import Tracer
from .dtypes import check_dtype
from .types import ArrayLike, Unchecked

#: What JAX takes as an array.
ARRAY_TYPES = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)

#: The types of which every instance can be sent or is refused by JAX whenever it is passed.
#: Types of arrays are added as they are met.
PLAIN_TYPES: set[type] = {bool, int, float, complex}

TRACER_HINT = (
    "An abstract tracer was passed where a concrete value is expected. Try using the "
    "static_argnums argument of jax.jit."
)


def array(function: str, argument: str, value: object) -> ArrayLike:
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
        return value  # type: ignore[return-value]  # a number
    if isinstance(value, (bool, int, float, complex)):
        return value
    if hasattr(value, "__jax_array__"):
        return array(function, argument, value.__jax_array__())
    reject(function, argument, "an array or a number", value)


def accepts(value: object, expected: type) -> bool:
    """Whether a value is of a type. NumPy's abstract types stand for Python's, too."""
    if issubclass(expected, np.generic):
        return bool(np.issubdtype(type(value), expected))  # np.integer is not for bool
    return isinstance(value, expected)


def in_words(value: object) -> str:
    """A value in a text: simple ones as they are written, others by what they are."""
    if isinstance(value, (jax.Array, np.ndarray)):
        kind = "a traced array" if isinstance(value, Tracer) else "an array"
        return f"{kind} of type {value.dtype} and shape {value.shape}"
    name = getattr(value, "__name__", None)
    if callable(value) and isinstance(name, str):
        return f"the {'class' if isinstance(value, type) else 'function'} {name}"
    of_type = type(value)
    if of_type.__module__ in ("builtins", "numpy") and of_type is not object:
        return reprlib.repr(value)
    return f"an object of type {of_type.__module__}.{of_type.__qualname__}"


def reject(
    function: str, argument: str, expected: str, value: object, hint: str = ""
) -> NoReturn:
    """Raise the TypeError for an argument of the wrong type.

    It says what was expected, and a hint may say more.
    """
    if hint:
        hint = f". {hint}"
    elif isinstance(value, Tracer):
        hint = f"\n\n{TRACER_HINT}"
    raise TypeError(
        f"{function}: `{argument}` must be {expected}, not {in_words(value)}{hint}"
    )


def check_callable(function: str, argument: str, value: object, parameters: str) -> None:
    """Raise TypeError if an argument is not one that can be called."""
    if not callable(value):
        reject(function, argument, f"a function of {parameters}", value)


def check(
    function: str, argument: str, types: tuple[type, ...], expected: str, value: object
) -> None:
    """Raise TypeError if an argument of `function` is not of one of these types.

    The types are `expected` in words.
    """
    if not any(accepts(value, each) for each in types):
        reject(function, argument, expected, value)


def integer(function: str, argument: str, value: Unchecked) -> int:
    """An argument that has to be an integer, of Python's or NumPy's, but no bool."""
    if type(value) is not int:
        check(function, argument, (np.integer,), "an integer", value)
    return int(value)


def integers(function: str, argument: str, values: Unchecked) -> tuple[int, ...]:
    """An argument that has to be a sequence of integers."""
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        reject(function, argument, "a sequence of integers", values)
    return tuple(integer(function, argument, value) for value in values)
