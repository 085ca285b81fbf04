"""The logging switch, and what mpi4jax's own tests ask of the extension modules."""

from __future__ import annotations

from mpi4py import MPI

from mpi4jax import _core

from .. import bridge, config, device

HAS_XPU_EXT = False


def __getattr__(name: str) -> bool:
    # Looked for when somebody asks: not every program that is imported wants a driver.
    if name in ("HAS_CUDA_EXT", "HAS_GPU_EXT"):
        return device.has_device("cuda")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


get_logging = _core.get_logging


def set_logging(enable: bool) -> None:
    """Print two lines for every MPI call, or stop doing so."""
    _core.set_logging(bool(enable))


def _check_mpi_abi_compatibility() -> None:
    """Does nothing: the MPI of the process is bound at run time, so it is the right one.

    In mpi4jax 0.9 this compares it with the MPI of build time, unless
    MPI4JAX_SKIP_ABI_CHECK is set.
    """


MPI_ABI_INFO = {
    "abi": bridge.abi(),
    "sizeof_comm": MPI._sizeof(MPI.Comm),
    "sizeof_datatype": MPI._sizeof(MPI.Datatype),
    "sizeof_op": MPI._sizeof(MPI.Op),
    "sizeof_status": MPI._sizeof(MPI.Status),
    "comm_world_handle": MPI._handleof(MPI.COMM_WORLD),
    "mpi_library_version": MPI.Get_library_version(),
}

# Read here and not once in the process: a reload of this module reads it again.
set_logging(bool(config.flag("MPI4JAX_DEBUG")))
