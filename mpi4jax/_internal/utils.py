"""Helpers at the place where programs and mpi4jax's own tests look for them."""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax

from . import config
from .handles import HashableMPIType, get_default_comm, unpack_hashable
from .jax_compat import versiontuple

__all__ = [
    "HashableMPIType",
    "get_default_comm",
    "has_cuda_support",
    "has_sycl_support",
    "prefer_notoken",
    "unpack_hashable",
    "wrap_as_hashable",
]


def wrap_as_hashable(obj: Any) -> HashableMPIType:
    """Make an MPI object usable as a static argument of `jax.jit`."""
    return obj if isinstance(obj, HashableMPIType) else HashableMPIType(obj)


def has_cuda_support() -> bool:
    """Whether mpi4jax can be used with arrays on NVIDIA GPUs."""
    from . import xla_bridge

    return xla_bridge.HAS_CUDA_EXT


def has_sycl_support() -> bool:
    """Whether mpi4jax can be used with arrays on Intel GPUs."""
    from . import xla_bridge

    return xla_bridge.HAS_XPU_EXT


def prefer_notoken() -> bool:
    """What MPI4JAX_PREFER_NOTOKEN asks for.

    Has no effect: operations are ordered in one way, with tokens and without.
    """
    old_jax = versiontuple(jax.__version__) < (0, 5, 0)
    if "MPI4JAX_PREFER_NOTOKEN" not in os.environ:
        return not old_jax
    preferred = bool(config.flag("MPI4JAX_PREFER_NOTOKEN"))
    if not preferred and not old_jax:
        warnings.warn(
            "MPI4JAX_PREFER_NOTOKEN=0 has no effect, as operations are no longer ordered "
            "by tokens.",
            stacklevel=2,
        )
    return preferred
