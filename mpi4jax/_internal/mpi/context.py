"""The GPU context of this process, which has to exist before MPI is initialised.

A CUDA-aware MPI looks for a current context in MPI_Init. Without a context, Open MPI stays
without support for GPUs, in parts or for good, and takes device memory for host memory
(open-mpi/ompi#11084, #11831, #13354). JAX makes its context at its first computation, long
after mpi4py was imported. So this file makes the context before: the primary context of the
device, which all libraries of a process share.

Nothing here imports mpi4py, as that may initialise MPI.
"""

from __future__ import annotations

import os
import sys

from mpi4jax import _core, _launcher
from mpi4jax._node import nvidia_gpus

from ..environment import settings
from ..xla import jax_compat

_NAME = "mpi4jax.prepare_gpu"

#: Reason why MPI found no context, empty if it found one.
_why_none = "JAX was not set to use a GPU when mpi4jax was imported"


def why_none() -> str:
    """Reason why MPI found no context when it was initialised, empty if it found one."""
    return _why_none


def may_be_direct() -> bool:
    """Whether MPI may be passed device memory. Without a context, no driver is asked."""
    if settings.use_cuda_mpi is None:
        return not _why_none and _core.is_direct()
    return settings.use_cuda_mpi and jax_compat.may_use_cuda()


def prepare() -> None:
    """Make the GPU context that JAX will use, for MPI to find, if MPI may get GPU memory.

    Call this before mpi4py is imported.
    """
    global _why_none
    wanted = settings.use_cuda_mpi
    if wanted is False or not jax_compat.may_use_cuda():
        return
    if _mpi_is_initialized():
        # The program may have used its GPU before it initialised MPI.
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
    """Make the context of this process's GPU, for a CUDA-aware MPI to find.

    A CUDA-aware MPI looks for a GPU context when it is initialised, and may crash on the
    memory of GPUs if there was none. ``import mpi4jax`` makes the context if mpi4py was not
    imported before, and it is clear which GPU this process will use. Otherwise, set
    ``mpi4py.rc.initialize = False``, and call this function before MPI is initialised. The
    context is the one that JAX uses, and is current on the calling thread afterwards.

    Arguments:
        device: The index of the GPU among the GPUs that this process sees. By default, the
            first of ``jax_cuda_visible_devices``, the only visible GPU, or the GPU whose
            index is the rank of this process on its host: JAX assigns this GPU to the
            process in a distributed program.

    Raises:
        RuntimeError: if MPI is initialised already, or the driver refuses.
        ImportError: if there is no GPU driver.

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
    """The error for arrays on GPUs without a driver that can be used."""
    why = _core.why_no_device() or f"the driver is that of {_core.device()}"
    return ImportError(
        "The mpi4jax GPU extensions could not be imported: "
        f"there is no driver of a GPU that could be used ({why})."
    )


def _mpi_is_initialized() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_initialized())


def _only_device() -> int | None:
    """The index of the GPU that JAX is sure to use, None if several are possible.

    This does not ask the driver, which reads CUDA_VISIBLE_DEVICES when it is initialised: a
    program may set this variable later, once it knows its rank.
    """
    in_use = jax_compat.gpu_in_use()
    if in_use is not None:
        return in_use
    visible_to_jax = jax_compat.visible_gpus()
    if visible_to_jax:
        # JAX takes all of them, and computes on the first one by default.
        return min(visible_to_jax)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = len([name for name in visible.split(",") if name.strip()])
    else:
        count = nvidia_gpus()
    return 0 if count == 1 else None


def _likely_device() -> int:
    """The index of the GPU to prepare if several are visible.

    Outside of a distributed program, JAX takes all visible GPUs, and computes on the first
    one. In a distributed program, JAX takes the GPU whose index is the rank of the process
    on its host. So this GPU is in use either way, and its context costs nothing more.
    Arrays on another GPU are noticed when they are communicated.
    """
    local_rank = jax_compat.local_rank()
    if local_rank is None:
        # Of launchers that JAX does not know.
        local_rank = _launcher.local_rank() or 0
    return local_rank if local_rank < _core.device_count() else 0
