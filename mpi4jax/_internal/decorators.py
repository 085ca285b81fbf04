"""Checks for GPU support, at the place where mpi4jax's own tests look for them."""

from __future__ import annotations

from mpi4jax import _core

from . import config, device

_is_truthy = config.is_truthy
_is_falsy = config.is_falsy


def ensure_cuda_ext() -> None:
    """Raise if arrays on NVIDIA GPUs can't be used."""
    from . import xla_bridge

    if not (xla_bridge.HAS_CUDA_EXT and xla_bridge.HAS_GPU_EXT):
        raise _missing_driver()


def ensure_device(platform: str) -> None:
    """Raise if arrays on a platform of JAX's that has device memory can't be used."""
    if platform == "cuda":
        ensure_cuda_ext()
    elif not device.has_device(platform):
        raise _missing_driver()


def _missing_driver() -> ImportError:
    why = _core.why_no_device() or f"the driver is that of {_core.device()}"
    return ImportError(
        "The mpi4jax GPU extensions could not be imported: "
        f"there is no driver of a GPU that could be used ({why})."
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
