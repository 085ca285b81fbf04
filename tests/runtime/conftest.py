"""Tests of the operations in XLA's own client for CUDA, on a stand-in for the driver.

They run on every rank of an `mpiexec`, in an environment with JAX's plugin for CUDA. The
stand-in runs XLA's kernels on the host.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Where the driver's functions for tests are, and the marks that run a test with every case.
sys.path += [str(Path(__file__).parents[1] / name) for name in ("device", "mpi")]

import driver
import pytest
from mpi4py import MPI

pytest_plugins = ["cuda_client", "ranks", "sample"]


def why_not():
    if driver.why_not:
        return driver.why_not
    if find_spec("jax_cuda12_plugin") is None:
        return "JAX's plugin for CUDA is not installed"
    return ""


def pytest_collection_modifyitems(items):
    reason = why_not()
    for item in items:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _start_together(default_communicator):
    """Start a test on all ranks together, with nothing left of the last one."""
    from mpi4jax import _core
    from mpi4jax._internal.xla.flush import flush

    MPI.COMM_WORLD.Barrier()
    _core.set_raise_on_error(True)
    driver.reset_counts()
    yield
    flush()
    driver.idle()
    assert driver.count("violations") == 0


def is_own_allocation():
    """Whether each array is an allocation of its own, not a part of an earlier one."""
    return os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "cuda_async"


def possible_ways():
    if "MPI4JAX_USE_CUDA_MPI" in os.environ:
        return ["direct"]
    return ["staged", "direct"] if is_own_allocation() else ["staged"]


@pytest.fixture(params=possible_ways())
def way(request):
    """How MPI gets at the arrays: through copies, or itself, where the host can touch them.

    With memory that the host can't touch, a copy that is left out ends in a segmentation
    fault; so does what is not CUDA-aware.
    """
    from mpi4jax import _core

    if "MPI4JAX_USE_CUDA_MPI" in os.environ:
        yield request.param
        return
    is_direct = request.param == "direct"
    driver.set_open(is_direct)
    _core.set_direct(is_direct)
    yield request.param
    _core.set_direct(False)
    driver.set_open(False)
