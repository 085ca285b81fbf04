"""Helpers for primitives that call MPI. `mpi4jax.extend` has them under public names."""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from mpi4py import MPI

from mpi4jax import has_cuda_support, has_sycl_support, unpack_hashable, wrap_as_hashable
from mpi4jax._internal.arguments.hashable import HashableMPIType
from mpi4jax._internal.environment import flag
from mpi4jax._internal.mpi.handles import get_default_comm, handle
from mpi4jax._internal.older_api.token import NOTSET, raise_if_token_is_set
from mpi4jax._internal.versions import HAS_TOKENS, versiontuple
from mpi4jax._internal.xla.effects import OrderedMPIEffect, ordered_effect
from mpi4jax._internal.xla.jax_compat import apply_primitive, ir, ir_constant, token_type
from mpi4jax._override import override

from .jax_compat import EffectType, register_effect

__all__ = [
    "MPI_TYPE_MAP",
    "NOTSET",
    "EffectType",
    "HashableMPIType",
    "MPIEffect",
    "OrderedMPIEffect",
    "as_mhlo_constant",
    "default_primitive_impl",
    "effect",
    "get_default_comm",
    "get_default_layouts",
    "has_cuda_support",
    "has_sycl_support",
    "ordered_effect",
    "prefer_notoken",
    "raise_if_token_is_set",
    "register_effect",
    "to_dtype_handle",
    "to_mpi_handle",
    "to_mpi_ptr",
    "token_type",
    "unpack_hashable",
    "wrap_as_hashable",
]


class MPIEffect(EffectType):
    """Calls MPI, in no particular order."""

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, MPIEffect)

    @override
    def __hash__(self) -> int:
        return hash(MPIEffect.__qualname__)


effect = register_effect(MPIEffect)


def default_primitive_impl(primitive: Any) -> Callable[..., Any]:
    """Make the rule of eager calls that compiles a primitive and runs it alone."""
    return functools.partial(apply_primitive, primitive)


def to_mpi_handle(mpi_obj: Any) -> Any:
    """The handle of an MPI object.

    A NumPy integer of pointer size up to mpi4jax 0.7, a signed integer from 0.8 on.
    """
    mpi_handle = np.uintp(handle(mpi_obj))
    return mpi_handle if HAS_TOKENS else int(mpi_handle.astype(np.intp))


def to_mpi_ptr(mpi_obj: Any) -> Any:
    """The address of the handle of an MPI object."""
    return np.uintp(MPI._addressof(mpi_obj))


#: The names of MPI's data types, by NumPy's.
MPI_TYPE_MAP = {
    "bool": "BOOL",
    "int8": "INT8_T",
    "int16": "INT16_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
    "uint8": "UINT8_T",
    "uint16": "UINT16_T",
    "uint32": "UINT32_T",
    "uint64": "UINT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float128": "LONG_DOUBLE",
    "complex64": "COMPLEX",
    "complex128": "DOUBLE_COMPLEX",
}


def to_dtype_handle(dtype: Any) -> Any:
    """The handle of the MPI data type for one of NumPy's."""
    name = np.dtype(dtype).name
    if name not in MPI_TYPE_MAP:
        raise RuntimeError(f"Unknown MPI type for dtype {name}")
    return to_mpi_handle(getattr(MPI, MPI_TYPE_MAP[name]))


def as_mhlo_constant(val: Any, dtype: Any) -> Any:
    """A value of a program that is being lowered, in an array of one element."""
    return ir_constant(np.array([val], dtype))


def get_default_layouts(operands: Sequence[Any], order: str = "c") -> list[tuple[int, ...]]:
    """The layouts of values, or of their types: of arrays in C's order, or in Fortran's."""
    if order not in ("c", "f"):
        raise ValueError(f"Unknown order: {order}")

    def layout(operand: Any) -> tuple[int, ...]:
        type_ = operand.type if isinstance(operand, ir.Value) else operand
        if type_ == token_type():
            return ()
        axes = range(len(ir.RankedTensorType(type_).shape))
        return tuple(axes if order == "f" else reversed(axes))

    return list(map(layout, operands))


def prefer_notoken() -> bool:
    """Read MPI4JAX_PREFER_NOTOKEN, which has no effect.

    Operations are ordered in one way, with tokens and without.
    """
    old_jax = versiontuple(jax.__version__) < (0, 5, 0)
    if "MPI4JAX_PREFER_NOTOKEN" not in os.environ:
        return not old_jax
    preferred = bool(flag("MPI4JAX_PREFER_NOTOKEN"))
    if not preferred and not old_jax:
        warnings.warn(
            "MPI4JAX_PREFER_NOTOKEN=0 has no effect, as operations are no longer ordered "
            "by tokens.",
            stacklevel=2,
        )
    return preferred
