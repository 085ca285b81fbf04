"""Builds the stand-ins for GPU software: tests/driver and tests/aware_mpi."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from environments import ROOT, call

#: The file names under which the core looks for a driver.
CUDA, ROCM = "libcuda.so.1", "libamdhip64.so"
#: NVIDIA's other libraries, which the stand-in replaces as well.
LIBRARIES = (
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudart.so.12",
    "libcudnn.so.9",
    "libnvidia-ml.so.1",
)
#: The settings with which XLA's client for CUDA starts on the stand-in.
ENVIRON = {
    "JAX_PLATFORMS": "cuda",
    # There are no libraries whose versions could be right.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    # Each array is an allocation of its own.
    "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
    # Measuring kernels gains nothing here, and the stand-in has no CUDA graphs.
    "XLA_FLAGS": " ".join(
        (
            "--xla_gpu_autotune_level=0",
            "--xla_gpu_enable_command_buffer=",
            "--xla_cpu_multi_thread_eigen=false",
        )
    ),
    # XLA may copy from and to any memory of the host's, as the core must not.
    "STAND_IN_PAGEABLE": "1",
}


@cache
def driver(name: str) -> Path:
    """Build the stand-in for a driver, and return a folder that has it under `name`."""
    library = build("driver") / "libstand_in_driver.so"
    folder = library.parents[1] / name
    folder.mkdir(exist_ok=True)
    replace(folder / name, library)
    if name == CUDA:
        for alias in LIBRARIES:
            # One file, so that all of them are one library for the loader, with one state.
            if not (folder / alias).is_symlink():
                (folder / alias).symlink_to(name)
        (folder / "bin").mkdir(exist_ok=True)
        replace(folder / "bin" / "ptxas", library.with_name("ptxas"))
    return folder


@cache
def aware_mpi() -> Path:
    """Build the stand-in for a CUDA-aware MPI, which is to be preloaded."""
    return build("aware_mpi") / "libaware_mpi.so"


def build(crate: str) -> Path:
    """Build a crate of the tests, and return the folder with its library."""
    folder = ROOT / "tests" / crate
    manifest, target = folder / "Cargo.toml", folder / "target"
    command = ("cargo", "build", "--quiet", "--locked", "--release")
    call(*command, "--manifest-path", manifest, "--target-dir", target)
    return target / "release"


def replace(path: Path, source: Path) -> None:
    """Put a copy in the place of a file that another run may have loaded."""
    copy = path.with_name(f"new-{os.getpid()}")
    shutil.copy(source, copy)
    copy.replace(path)
