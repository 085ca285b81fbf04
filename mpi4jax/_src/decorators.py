"""Checks for GPU support, at the place where mpi4jax's own tests look for them."""

from __future__ import annotations

from . import config

_is_truthy = config.is_truthy
_is_falsy = config.is_falsy


def ensure_cuda_ext() -> None:
    """Raise if arrays on NVIDIA GPUs can't be used."""
    from . import xla_bridge

    if not (xla_bridge.HAS_CUDA_EXT and xla_bridge.HAS_GPU_EXT):
        raise ImportError(
            "The mpi4jax GPU extensions could not be imported. "
            "This release of mpi4jax has no support for arrays on GPUs."
        )


#: Its name in mpi4jax 0.3.
ensure_gpu_ext = ensure_cuda_ext


def ensure_xpu_ext() -> None:
    """Raise if arrays on Intel GPUs can't be used."""
    from . import xla_bridge

    if not xla_bridge.HAS_XPU_EXT:
        raise ImportError(
            "The mpi4jax XPU extensions could not be imported. "
            "This release of mpi4jax has no support for SYCL."
        )
