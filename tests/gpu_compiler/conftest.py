"""Tests of programs that XLA compiles for a GPU, on machines without one.

They run on every rank of an `mpiexec`, in an environment with JAX's CUDA plugin. Nothing is
executed: what is looked at is the scheduled program.
"""

import gpu
import pytest

from mpi4jax import distributed
from mpi4jax._internal.mpi import device

pytest_plugins = ["ranks", "sample"]

# Programs on a mesh want JAX's processes to be the ranks.
distributed.initialize()


@pytest.fixture(autouse=True)
def _no_driver_is_needed(default_communicator, monkeypatch):
    """A call for a GPU is refused where there is no driver to run it."""
    monkeypatch.setattr(device, "prepare", lambda platform: None)


def pytest_collection_modifyitems(items):
    if gpu.why_not:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=gpu.why_not))
