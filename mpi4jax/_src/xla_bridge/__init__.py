"""The switch for logging, and flags of the extension modules that exist."""

from typing import Any

from mpi4jax._core import get_logging
from mpi4jax._internal.environment import flag
from mpi4jax._internal.environment import is_truthy as _is_truthy
from mpi4jax._internal.mpi.device import has_cuda_support
from mpi4jax._internal.operations._alone import set_logging

from .mpi_xla_bridge import MPI_STATUS_IGNORE_ADDR

__all__ = [
    "HAS_XPU_EXT",
    "MPI_STATUS_IGNORE_ADDR",
    "_check_mpi_abi_compatibility",
    "_is_truthy",
    "get_logging",
    "set_logging",
]

HAS_XPU_EXT = False


def __getattr__(name: str) -> Any:
    # Looked up on demand: not every program that imports this needs a driver.
    if name in ("HAS_CUDA_EXT", "HAS_GPU_EXT"):
        return has_cuda_support()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check_mpi_abi_compatibility() -> None:
    """Do nothing: the MPI of the process is bound at run time, so it is the right one.

    In mpi4jax 0.9 this compares it with the MPI of build time, unless
    MPI4JAX_SKIP_ABI_CHECK is set.
    """


# Read here and not once in the process: a reload of this module reads it again.
_debug_enabled = flag("MPI4JAX_DEBUG") is True
set_logging(_debug_enabled)
