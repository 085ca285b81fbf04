"""Data types of arrays: their MPI data types, and the operators that accept them."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from mpi4jax import _core

from ..xla.jax_compat import ShapedArray
from .types import ArrayLike, DType, Shaped

#: The MPI data type of each XLA data type, with the code of XLA's type in c_api.h. MPI has
#: no type for short floats, which travel as integers of the same size.
DATATYPES = {
    "bool": (1, "C_BOOL"),
    "int8": (2, "INT8_T"),
    "int16": (3, "INT16_T"),
    "int32": (4, "INT32_T"),
    "int64": (5, "INT64_T"),
    "uint8": (6, "UINT8_T"),
    "uint16": (7, "UINT16_T"),
    "uint32": (8, "UINT32_T"),
    "uint64": (9, "UINT64_T"),
    "float16": (10, "UINT16_T"),
    "bfloat16": (16, "UINT16_T"),
    "float32": (11, "FLOAT"),
    "float64": (12, "DOUBLE"),
    "complex64": (15, "C_FLOAT_COMPLEX"),
    "complex128": (18, "C_DOUBLE_COMPLEX"),
    "float8_e3m4": (29, "UINT8_T"),
    "float8_e4m3": (28, "UINT8_T"),
    "float8_e4m3b11fnuz": (23, "UINT8_T"),
    "float8_e4m3fn": (20, "UINT8_T"),
    "float8_e4m3fnuz": (25, "UINT8_T"),
    "float8_e5m2": (19, "UINT8_T"),
    "float8_e5m2fnuz": (24, "UINT8_T"),
    "float8_e8m0fnu": (33, "UINT8_T"),
}

#: Carrier type of each type whose elements are smaller than a byte. XLA packs several of
#: these elements into one byte, and MPI can't address parts of bytes, so arrays of such a
#: type are converted to the carrier type to be sent.
CARRIERS = {
    "int2": "int8",
    "int4": "int8",
    "uint2": "uint8",
    "uint4": "uint8",
    "float4_e2m1fn": "float8_e4m3fn",
}

#: Names of MPI's predefined reduction operators, in the order of their numbers.
OPERATORS = _core.OPERATORS

SUM = OPERATORS.index("SUM")

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_REALS = (*_INTEGERS, "float16", "bfloat16", "float32", "float64")
_NUMBERS = (*_REALS, "complex64", "complex128")

#: The dtypes that each operator accepts (MPI-4.1 §6.9.2).
_REDUCED = {
    **dict.fromkeys(["SUM", "PROD"], _NUMBERS),
    **dict.fromkeys(["MAX", "MIN"], _REALS),
    **dict.fromkeys(["LAND", "LOR", "LXOR"], ("bool", *_INTEGERS)),
    **dict.fromkeys(["BAND", "BOR", "BXOR"], _INTEGERS),
}


#: The dtypes of all arrays that can be sent.
_SENT = {np.dtype(name): name for name in (*DATATYPES, *CARRIERS)}


def check_dtype(function: str, argument: str, dtype: DType) -> None:
    """Raise TypeError if arrays of this type can't be sent."""
    if dtype in _SENT:
        return
    problem = f'{function} got an array of type {dtype} for argument "{argument}"'
    if isinstance(dtype, np.dtype) and dtype.newbyteorder("=") in _SENT:
        raise TypeError(
            f"{problem}: its bytes are not in this machine's order. Send "
            'x.astype(x.dtype.newbyteorder("="))'
        )
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"{problem}: PRNG keys can't be sent as they are. Send "
            "jax.random.key_data(keys), and make keys of what is received by "
            "jax.random.wrap_key_data"
        )
    raise TypeError(f"{problem}, expected one of {', '.join(_SENT.values())}")


def check_reduction(function: str, argument: str, op_number: int, dtype: DType) -> None:
    """Raise TypeError if a predefined operator does not accept arrays of this type."""
    if op_number >= len(OPERATORS):
        return  # The dtypes of a user-made operator are up to the user.
    allowed = _REDUCED.get(OPERATORS[op_number], ())
    if str(dtype) not in allowed:
        supported = (
            f"for {', '.join(allowed)}" if allowed else "not supported for JAX arrays"
        )
        raise TypeError(
            f'{function} got an array of type {dtype} for argument "{argument}" for '
            f"op=MPI.{OPERATORS[op_number]}, which is {supported}"
        )


def avals_of(arrays: Iterable[Shaped]) -> list[ShapedArray]:
    """The abstract values of arrays."""
    return [ShapedArray(x.shape, x.dtype) for x in arrays]


def has_carrier(x: Shaped) -> bool:
    """Whether an array is converted to a carrier type to be sent."""
    return str(x.dtype) in CARRIERS


def carrier_aval(aval: ShapedArray) -> ShapedArray:
    """The abstract value of an array as it is sent: with its carrier type, if any."""
    carrier = CARRIERS.get(str(aval.dtype))
    return aval if carrier is None else ShapedArray(aval.shape, np.dtype(carrier))


def identity(op_number: int, dtype: DType) -> ArrayLike:
    """The identity element of an operator: zero if it is unknown."""
    name = OPERATORS[op_number] if op_number < len(OPERATORS) else ""
    if name in ("PROD", "LAND"):
        return 1
    if name == "BAND":
        return ~np.zeros((), dtype)
    if name in ("MAX", "MIN"):
        if jax.dtypes.issubdtype(dtype, np.integer):
            limits = jax.numpy.iinfo(dtype)
            return limits.min if name == "MAX" else limits.max
        return -np.inf if name == "MAX" else np.inf
    return 0
