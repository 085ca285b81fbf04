"""The settings for arrays on GPUs. Without a GPU, importing this is an ImportError."""

from mpi4jax import _core, has_cuda_support
from mpi4jax._core import get_logging
from mpi4jax._internal.mpi.context import missing_driver
from mpi4jax._internal.operations._alone import set_logging

__all__ = ["get_logging", "set_copy_to_host", "set_logging"]

if not has_cuda_support():
    raise missing_driver()


def set_copy_to_host(enable: bool) -> None:
    """Pass copies of arrays in host memory to MPI (True), or their addresses (False)."""
    _core.set_direct(not enable)
