"""Decorators of lowering rules, and the checks that these make."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from mpi4jax._internal.environment import is_falsy as _is_falsy
from mpi4jax._internal.environment import is_truthy as _is_truthy
from mpi4jax._internal.mpi.context import missing_driver
from mpi4jax._internal.mpi.device import check_mpi

from . import xla_bridge

__all__ = [
    "_is_falsy",
    "_is_truthy",
    "ensure_cuda_ext",
    "ensure_gpu_ext",
    "ensure_xpu_ext",
    "setup_cuda_mpi",
    "setup_sycl_mpi",
    "translation_rule_cpu",
    "translation_rule_cuda",
    "translation_rule_gpu",
    "translation_rule_xpu",
]

P = ParamSpec("P")
R = TypeVar("R")


def ensure_cuda_ext() -> None:
    """Raise if arrays on NVIDIA GPUs can't be used."""
    if not (xla_bridge.HAS_CUDA_EXT and xla_bridge.HAS_GPU_EXT):
        raise missing_driver()


ensure_gpu_ext = ensure_cuda_ext


def ensure_xpu_ext() -> None:
    """Raise: arrays on Intel GPUs can't be used."""
    if not xla_bridge.HAS_XPU_EXT:
        raise ImportError(
            "The mpi4jax XPU extensions could not be imported. "
            "This release of mpi4jax has no support for SYCL."
        )


def setup_cuda_mpi() -> None:
    """Warn once if MPI may crash on device memory, or copies are made without need."""
    check_mpi()


def setup_sycl_mpi() -> None:
    """Do nothing: `ensure_xpu_ext` has raised before."""


def _after(*checks: Callable[[], None]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for check in checks:
                check()
            return function(*args, **kwargs)

        return checked

    return decorator


translation_rule_cpu: Any = _after()
translation_rule_cuda: Any = _after(ensure_cuda_ext, setup_cuda_mpi)
translation_rule_gpu = translation_rule_cuda
translation_rule_xpu: Any = _after(ensure_xpu_ext, setup_sycl_mpi)
