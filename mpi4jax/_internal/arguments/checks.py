"""Checks of arguments, with the texts that users of mpi4jax know."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ..xla.jax_compat import Tracer
from .dtypes import check_dtype
from .types import ArrayLike, Unchecked

#: The types that JAX accepts as arrays.
ARRAY_TYPES = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)

#: Types whose instances need no check of ours: each can be sent, or JAX refuses it in every
#: call. Array types are added as they appear.
PLAIN_TYPES: set[type] = {bool, int, float, complex}

TRACER_HINT = (
    "An abstract tracer was passed where a concrete value is expected. Try using the "
    "static_argnums argument of jax.jit."
)


def array(function: str, argument: str, value: object) -> ArrayLike:
    """Check that an argument is an array or a number, and return it as JAX accepts it.

    The dtype of each NumPy array is checked in every call: a compiled program that has been
    called before reads the memory of NumPy arrays without looking at what is in it.
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


def array_of_others(
    function: str, argument: str, value: object
) -> ArrayLike | jax.ShapeDtypeStruct:
    """Check that an argument is an array that can be sent, or the type of such an array."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        value = array(function, argument, value)
    dtype = value.dtype if hasattr(value, "dtype") else jnp.result_type(value)
    check_dtype(function, argument, dtype)
    return value


def jax_array(function: str, argument: str, value: object) -> jax.Array:
    """Check that an argument is an array that can be sent, and return it as a JAX array."""
    x = jnp.asarray(array(function, argument, value))
    check_dtype(function, argument, x.dtype)
    return x


def accepts(value: object, expected: type) -> bool:
    """Whether a value is of a type. NumPy's abstract types include Python's numbers."""
    if issubclass(expected, np.generic):
        return bool(np.issubdtype(type(value), expected))  # np.integer is not for bool
    return isinstance(value, expected)


def describe(value: object) -> str:
    """Describe a value for an error: simple values literally, others by kind and type."""
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

    Its text says what was expected, followed by the hint.
    """
    if hint:
        hint = f". {hint}"
    elif isinstance(value, Tracer):
        hint = f"\n\n{TRACER_HINT}"
    raise TypeError(
        f"{function}: `{argument}` must be {expected}, not {describe(value)}{hint}"
    )


def check_callable(function: str, argument: str, value: object, parameters: str) -> None:
    """Raise TypeError if an argument is not callable."""
    if not callable(value):
        reject(function, argument, f"a function of {parameters}", value)


def check(
    function: str, argument: str, types: tuple[type, ...], expected: str, value: object
) -> None:
    """Raise TypeError unless an argument of `function` has one of the types.

    `expected` describes the types in the error.
    """
    if not any(accepts(value, each) for each in types):
        reject(function, argument, expected, value)


def integer(function: str, argument: str, value: Unchecked) -> int:
    """Check that an argument is an integer, not a bool, and return it as an int."""
    if type(value) is not int:
        check(function, argument, (np.integer,), "an integer", value)
    return int(value)


def integers(function: str, argument: str, values: Unchecked) -> tuple[int, ...]:
    """Check that an argument is a sequence of integers, and return a tuple."""
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        reject(function, argument, "a sequence of integers", values)
    return tuple(integer(function, argument, value) for value in values)
