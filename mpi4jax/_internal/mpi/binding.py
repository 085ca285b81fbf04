"""Binding of the core to the MPI of this process, and registration of handlers with XLA."""

from __future__ import annotations

import os

from mpi4jax import _mpi

from . import context

# MPI looks for the context of a GPU when it is initialised, which importing mpi4py does.
context.prepare()

_mpi.load()

from mpi4py import MPI  # noqa: E402

from mpi4jax import _core  # noqa: E402

from ..watch.startup import start  # noqa: E402
from ..xla.effects import custom_call_target  # noqa: E402
from ..xla.jax_compat import register_ffi_target  # noqa: E402


def abi() -> str:
    """The ABI of the MPI that mpi4py uses, recognised by its handles."""
    if MPI._sizeof(MPI.Comm) == 4:
        return "mpich"
    # The standard ABI's predefined handles are small numbers (MPI-5.0 §20), Open MPI's
    # are addresses.
    return "standard" if MPI._handleof(MPI.COMM_WORLD) < 4096 else "openmpi"


#: Names of all operations in records. "comm_split" is one of JAX's collectives only.
operations: list[str] = []


def load() -> None:
    """Bind MPI, and register the handlers with XLA."""
    release = MPI.Get_library_version()
    library = release.splitlines()[0].strip(" ,\0")
    _core.set_mpi_release(release)
    try:
        on_host, on_device = _core.load(os.fspath(MPI.__file__), abi())
    except ImportError as error:
        raise ImportError(
            f"mpi4jax could not bind the MPI that mpi4py uses ({library!r}): {error}. "
            "Install mpi4py so that it loads a shared MPI library, for example with "
            "`pip install --force-reinstall mpi4py` and `pip install mpi4jax[mpich]`."
        ) from error
    for platform, handlers in (("cpu", on_host), ("CUDA", on_device), ("ROCM", on_device)):
        for name, capsule in handlers:
            register_ffi_target(custom_call_target(name), capsule, platform, api_version=1)
    operations[:] = [*(name for name, _ in on_host), "comm_split"]
    if MPI.Is_initialized():
        start()
