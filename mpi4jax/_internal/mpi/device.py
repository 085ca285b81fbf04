"""Arrays in device memory: whether MPI takes them, and the chunks of their messages."""

from __future__ import annotations

import functools
import warnings

import jax
import numpy as np
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._launcher import processes_on_node
from mpi4jax._node import siblings

from ..environment import settings
from ..xla.jax_compat import GPU_PLATFORMS
from . import context

#: Bytes in each chunk of a longer message. One chunk is copied while another one travels.
DEFAULT_CHUNK = 4 << 20
#: Bytes of the largest element. Chunks are a multiple of this size, so that a chunk is
#: equally long for arrays of any type.
LARGEST_ELEMENT = 16
#: Largest size of a chunk in bytes, as MPI counts the elements of a message in an int.
LARGEST_CHUNK = 1 << 30


def has_cuda_support() -> bool:
    """Whether mpi4jax can be used with arrays on NVIDIA GPUs."""
    return _core.device() == "cuda"


def has_sycl_support() -> bool:
    """Whether mpi4jax can be used with arrays on Intel GPUs: no."""
    return False


def prepare(platform: str) -> None:
    """Check that arrays on a JAX platform with device memory can be used. Raise if not.

    Warn once if MPI may crash on such arrays, or copies may be made without need.
    """
    if _core.device() != platform:
        raise context.missing_driver()
    check_mpi()
    _expect_own_gpu()


@functools.cache
def _expect_own_gpu() -> None:
    """Prepare a warning for processes that compute on one GPU, though each may have one."""
    count, gpus = processes_on_node(), _core.device_count()
    if 2 <= count <= gpus:
        _core.expect_own_gpu(
            siblings(),
            "processes of this node compute on the same GPU ({gpu}), though there are "
            f"{gpus} GPUs for {count} processes. Start the program by `python -m mpi4jax "
            "run`, or set CUDA_VISIBLE_DEVICES by the rank on the node before JAX begins",
        )


@functools.cache
def check_mpi() -> None:
    """Warn if MPI may crash on device memory, or copies may be made without need."""
    wanted, supported = settings.use_cuda_mpi, _core.mpi_takes_device_memory()
    if wanted and supported is False:
        warnings.warn(
            "MPI4JAX_USE_CUDA_MPI=1 has MPI read and write the memory of GPUs, but this "
            "MPI says that it can't. Should the program crash (segmentation fault), unset "
            "it.",
            stacklevel=2,
        )
    elif (wanted or (wanted is None and supported)) and not _core.has_start_context():
        warnings.warn(_no_context(wanted is True), stacklevel=2)
    if wanted is None and supported is None:
        warnings.warn(
            "Not using CUDA-aware MPI, as this MPI does not say whether it is: arrays on "
            "GPUs are copied to host memory. If it is, set MPI4JAX_USE_CUDA_MPI=1. To "
            "silence this warning, set MPI4JAX_USE_CUDA_MPI=0.",
            stacklevel=2,
        )


def _no_context(is_wanted: bool) -> str:
    """The warning that MPI found no GPU context."""
    consequence = (
        "MPI4JAX_USE_CUDA_MPI=1 has it get that nevertheless, which may crash the program"
        if is_wanted
        else "So arrays on GPUs are copied to host memory"
    )
    return (
        f"MPI found no context of a GPU when it was initialised ({context.why_none()}), "
        "and CUDA-aware MPIs may take the memory of GPUs for the host's then. "
        f"{consequence}. Import mpi4jax before mpi4py, and let each process see its own "
        "GPU only (CUDA_VISIBLE_DEVICES), or call mpi4jax.prepare_gpu() before MPI is "
        "initialised."
    )


def chunk_of(comm: MPI.Intracomm, is_private: bool) -> int:
    """Number of bytes in a chunk of a message on this communicator, 0 for no chunks.

    All processes have to use the same number. On a communicator that mpi4jax shares with
    other code, the user is responsible for that, and sets MPI4JAX_STAGING_CHUNK. On the
    private communicator, which all processes make together, they agree here.
    """
    chunk = settings.staging_chunk
    if chunk is None:
        chunk = DEFAULT_CHUNK if is_private and _uses_copies() else 0
    chunk = min(-(-chunk // LARGEST_ELEMENT) * LARGEST_ELEMENT, LARGEST_CHUNK)
    if not is_private:
        return chunk
    ends = np.array([chunk, -chunk], np.int64)
    comm.Allreduce(MPI.IN_PLACE, ends, MPI.MIN)
    return chunk if ends[0] == -ends[1] else 0


def _uses_copies() -> bool:
    """Whether this process passes host copies of its arrays to MPI."""
    if _core.device() is None or _core.is_direct():
        return False
    return jax.default_backend() in ("gpu", *GPU_PLATFORMS)
