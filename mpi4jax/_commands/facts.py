"""Facts about a process, its MPI, its JAX and its host."""

from __future__ import annotations

import importlib
import os
import platform
import re
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from mpi4jax import _launcher, _mpi, _node, _terminal

Facts = dict[str, Any]

PACKAGES = ("mpi4jax", "jax", "jaxlib", "mpi4py", "numpy")

#: Pattern of the settings of mpi4jax, JAX, and the transports of MPI.
_SETTINGS = re.compile(
    "(MPI4JAX|JAX|XLA|UCX|FI|MPIR_CVAR|MPI4PY)_.*"
    "|OMPI_MCA_(pml|mtl|btl)|CUDA_VISIBLE_DEVICES|GLIBC_TUNABLES|OMP_NUM_THREADS"
)


def of_this_process() -> Facts:
    """All facts. "errors" has the reasons why mpi4jax or JAX can't be used."""
    # Before MPI is initialised, as MPI may set variables of a launcher.
    launchers = _launcher.launchers()
    errors: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        mpi = _load_mpi(launchers)
        has_mpi4jax = _try_import("mpi4jax.notoken", errors) is not None
        facts = {
            "versions": versions(),
            "mpi": {} if mpi is None else {**of_mpi(mpi), "waits": waits(has_mpi4jax)},
            "launchers": [each._asdict() for each in launchers],
            "devices": of_devices(errors) if has_mpi4jax else {},
            "host": of_host(),
            "settings": settings(),
        }
        lacks = what_jax_lacks() if has_mpi4jax else []
    texts = [" ".join(str(w.message).split()) for w in caught if w.category is UserWarning]
    texts += lacks
    return {**facts, "errors": errors, "warnings": list(dict.fromkeys(texts))}


def _load_mpi(launchers: Sequence[_launcher.Launcher]) -> Any:
    """mpi4py's MPI, or None: the import of mpi4jax then raises an error with the reason.

    MPI may end the process when it is initialised, so a likely reason is printed before.
    """
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    try:
        import mpi4py

        should_initialize, mpi4py.rc.initialize = mpi4py.rc.initialize, False
        mpi4py.rc.finalize = True  # which goes without saying only together with the other
        MPI = _mpi.load()
    except Exception:
        return None
    why = _launcher.foreign_launcher(
        _launcher.library_name(MPI.Get_library_version()),
        _launcher.library_file(),
        launchers,
    )
    if why and _launcher.is_first():
        _terminal.tell(f"If MPI cannot be initialised: {why}.", sys.stderr)
    # It makes the context of a GPU that MPI looks for. The next import gives its errors.
    _try_import("mpi4jax._internal", [])
    if should_initialize:
        MPI.Init_thread(getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}"))
    return MPI


def _try_import(name: str, errors: list[str]) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        errors.append(f"mpi4jax cannot be imported: {type(error).__name__}: {error}")
        return None


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> Facts:
    return {"python": platform.python_version(), **{p: version_of(p) for p in PACKAGES}}


#: A text that tells this mpi4jax from the original, which has no `python -m mpi4jax`.
IMPLEMENTATION = "an independent reimplementation in Rust, not the original mpi4jax"


def line_of(version: str, environ: Mapping[str, str] = os.environ) -> str:
    """The top-level API of a version: "with tokens" or "without tokens"."""
    with_tokens = re.match(r"0\.[0-7]\b", version) is not None
    with_tokens = {"token": True, "notoken": False}.get(
        environ.get("MPI4JAX_API", ""), with_tokens
    )
    return "with tokens" if with_tokens else "without tokens"


def describe_version() -> str:
    """The text of `python -m mpi4jax --version`."""
    version = version_of("mpi4jax")
    if version is None:
        first = "mpi4jax, not installed: these are its sources"
    else:
        line = line_of(version)
        call = "y, token =" if line == "with tokens" else "y ="
        first = f"mpi4jax {version}, {line}: {call} mpi4jax.allreduce(x, op=MPI.SUM)"
    folder = Path(__file__).resolve().parent.parent
    return f"{first}\n{IMPLEMENTATION}\n{folder}"


def transports(version: str) -> str | None:
    """The transports with which MPICH was built. Other MPIs do not tell."""
    device = re.search(r"^MPICH Device:\s*(.+?)\s*$", version, re.MULTILINE)
    return device and device[1]


def of_mpi(mpi: Any) -> Facts:
    version = mpi.Get_library_version()
    levels = {
        getattr(mpi, f"THREAD_{level}"): level
        for level in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    }
    return {
        "library": _launcher.library_name(version),
        "file": _launcher.library_file(),
        "standard": ".".join(map(str, mpi.Get_version())),
        "transports": transports(version),
        "threads": levels[mpi.Query_thread()],
        "rank": mpi.COMM_WORLD.Get_rank(),
        "size": mpi.COMM_WORLD.Get_size(),
    }


def waits(has_mpi4jax: bool) -> str | None:
    """Description of how operations wait, and of the sharing of CPUs."""
    if not has_mpi4jax:
        return None
    from mpi4jax._internal.mpi import cores

    return f"{cores.waits} ({cores.cores})"


def of_devices(errors: list[str]) -> Facts:
    """JAX's devices, and the way of arrays from there to MPI."""
    import jax

    from mpi4jax import _core
    from mpi4jax._internal.mpi import binding, context, device
    from mpi4jax._internal.xla.jax_compat import GPU_PLATFORMS

    try:
        devices, backend = jax.local_devices(), jax.default_backend()
    except RuntimeError as error:
        errors.append(f"JAX has no device: {error}")
        return {"abi": binding.abi()}
    # JAX has one name for the GPUs of all makers, and devices have their makers' names.
    on_gpu = backend == "gpu" or backend in GPU_PLATFORMS
    if on_gpu:
        if _core.device() is None:
            errors.append(str(context.missing_driver()))
        else:
            device.check_mpi()
    return {
        "abi": binding.abi(),
        "platform": backend,
        "devices": [getattr(d, "device_kind", str(d)) for d in devices],
        "driver": _core.device(),
        "why_no_driver": _core.why_no_device(),
        "has_cuda_support": device.has_cuda_support(),
        "mpi_takes_device_memory": _core.mpi_takes_device_memory(),
        "is_direct": _core.is_direct(),
        "has_start_context": _core.has_start_context(),
        "why_no_context": context.why_none(),
        "memory": _memory_kind(devices[0]) if on_gpu else None,
        "memory_taken": dict(_core.memory_kinds()),
    }


def what_jax_lacks() -> list[str]:
    """Sentences on the features that are slower or off because JAX has changed."""
    from mpi4jax._internal.environment import settings
    from mpi4jax._internal.xla import dispatch, private_names

    if settings.fast_dispatch:
        dispatch.try_once()
    return [*private_names.lacks(), *dispatch.lacks()]


def _memory_kind(gpu: Any) -> str | None:
    """The kind of memory of JAX's arrays on a GPU."""
    import jax
    import numpy as np

    from mpi4jax import _core

    array = jax.device_put(np.zeros(1, np.float32), gpu)
    return _core.memory_kind(array.unsafe_buffer_pointer())


def of_host() -> Facts:
    return {
        "name": socket.gethostname(),
        "cpus": _node.allowed_cpus(),
        "quota": _node.cpu_quota(),
        "huge_pages": _node.huge_pages(),
    }


def settings() -> dict[str, str]:
    """The environment variables that matter to mpi4jax, JAX or MPI."""
    return {name: v for name, v in sorted(os.environ.items()) if _SETTINGS.fullmatch(name)}
