"""The context of a GPU, which has to be there before MPI is initialised.

An MPI that is CUDA-aware looks for a current context in MPI_Init. Without one, Open MPI
stays without support for GPUs, in parts or for good, and takes their memory for the host's
(open-mpi/ompi#11084, #11831, #13354). JAX makes its context at its first computation, long
after mpi4py was imported. So it is made here before: the device's primary one, which all
libraries of a process have in common.

Nothing in this file imports mpi4py, as that may initialise MPI.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mpi4jax import _core

from ..environment import settings
from ..xla import jax_compat

_NAME = "mpi4jax.prepare_gpu"

#: NVIDIA's driver for Linux has a folder in it for each device.
_GPUS = Path("/proc/driver/nvidia/gpus")

#: The variables with the rank of this process on its host, of launchers that JAX does not
#: know: Hydra (MPICH, Intel MPI), Open MPI 5, and MVAPICH.
_LOCAL_RANKS = (
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
)

#: Why MPI found no context, if it found none.
_why_none = "JAX was not set to use a GPU when mpi4jax was imported"


def why_none() -> str:
    """Why MPI found no context when it was initialised."""
    return _why_none


def may_be_direct() -> bool:
    """Whether MPI may get the memory of GPUs. Without a context, no driver is asked."""
    if settings.use_cuda_mpi is None:
        return not _why_none and _core.is_direct()
    return settings.use_cuda_mpi and jax_compat.may_use_cuda()


def prepare() -> None:
    """Have MPI find the context that JAX will use, if it may get the memory of GPUs.

    Called before mpi4py is imported.
    """
    global _why_none
    wanted = settings.use_cuda_mpi
    if wanted is False or not jax_compat.may_use_cuda():
        return
    if _mpi_is_initialized():
        # The program may have used its GPU before that.
        has_context = _core.note_start_context()
        _why_none = "" if has_context else "it was initialised before mpi4jax was imported"
        return
    device = _only_device()
    if device is None and wanted:
        device = _likely_device()
    if device is None:
        _why_none = "several GPUs are visible, and which one this process uses was open"
        return
    try:
        _core.prepare_context(device)
    except RuntimeError as error:  # no driver, or one that refuses
        _why_none = str(error)
    else:
        _why_none = ""


def prepare_gpu(device: int | None = None) -> None:
    """Have a CUDA-aware MPI find the context of this process's GPU.

    Such an MPI looks for a context when it is initialised, and may crash on the memory of
    GPUs if there was none. ``import mpi4jax`` makes it if mpi4py was not imported before,
    and it is clear which GPU this process will use. Call this function where that is not
    so, with ``mpi4py.rc.initialize = False``, before MPI is initialised. The context is the
    one that JAX uses, and is current on the calling thread afterwards.

    Arguments:
        device: The number of the GPU among those that this process sees. By default, the
            first of ``jax_cuda_visible_devices``, the only one that is visible, or that
            with the number of this process on its host, which JAX gives it in a
            distributed program.

    Raises:
        RuntimeError: if MPI is initialised already, or the driver refuses.
        ImportError: if there is no driver of a GPU.

    """
    global _why_none
    from ..arguments.checks import integer

    if device is not None and integer(_NAME, "device", device) < 0:
        raise ValueError(f"{_NAME} got device {device}, expected 0 or more")
    if _core.device() is None:
        raise missing_driver()
    if _mpi_is_initialized():
        if device is None and not _why_none:
            return  # `import mpi4jax` has done it
        raise RuntimeError(
            f"{_NAME} was called after MPI was initialised. Set mpi4py.rc.initialize = "
            "False before anything imports mpi4py.MPI, and call MPI.Init_thread() after it"
        )
    if device is None:
        device = _only_device()
    _core.prepare_context(_likely_device() if device is None else int(device))
    _why_none = ""


def missing_driver() -> ImportError:
    """The error for arrays of GPUs that can't be used."""
    why = _core.why_no_device() or f"the driver is that of {_core.device()}"
    return ImportError(
        "The mpi4jax GPU extensions could not be imported: "
        f"there is no driver of a GPU that could be used ({why})."
    )


def _mpi_is_initialized() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_initialized())


def _only_device(gpus: Path = _GPUS) -> int | None:
    """The GPU that JAX is sure to use, None if that is open.

    The driver is not asked. When it is initialised it reads CUDA_VISIBLE_DEVICES, which a
    program may set later, once it knows its rank.
    """
    in_use = jax_compat.gpu_in_use()
    if in_use is not None:
        return in_use
    visible_to_jax = jax_compat.visible_gpus()
    if visible_to_jax:
        # JAX takes all of them, and the first one by default.
        return min(visible_to_jax)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = len([name for name in visible.split(",") if name.strip()])
    else:
        count = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    return 0 if count == 1 else None


def _likely_device() -> int:
    """The GPU to prepare of several, where the user wants MPI to get their memory.

    By itself, JAX takes all visible GPUs, and computes on the first one. As a part of a
    distributed program it takes the GPU whose ordinal is the rank of the process on its
    host. So this one is in use either way, and its context costs nothing more. Arrays on
    another GPU are noticed when they are communicated.
    """
    local_rank = jax_compat.local_rank()
    if local_rank is None:
        values = (os.environ.get(name, "") for name in _LOCAL_RANKS)
        local_rank = next((int(value) for value in values if value.isdigit()), 0)
    return local_rank if local_rank < _core.device_count() else 0
