"""Tests of the handlers for device memory, on a stand-in for the driver of a GPU.

They run on every rank of an `mpiexec`. `libcuda.so.1` must be the library of tests/driver.
"""

import sys
from pathlib import Path

# Where the marks are that run a test with every case of the table of operations.
sys.path.append(str(Path(__file__).parents[1] / "mpi"))

import calls
import driver
import frames
import pytest
from mpi4py import MPI

from mpi4jax import _core

pytest_plugins = ["ranks", "sample"]

COMM = MPI.COMM_WORLD

#: Page-locked memory that a test may use, unless it says otherwise.
LIMIT = 1 << 30


@pytest.fixture(autouse=True, scope="session")
def _free_communicators():
    yield
    calls.free_communicators()


@pytest.fixture(autouse=True)
def _start_together():
    """Start a test on all ranks together, with nothing left of the last one."""
    COMM.Barrier()
    driver.set_context(driver.context(0))
    _core.set_raise_on_error(True)
    _core.set_direct(False)
    _core.set_staging_limit(LIMIT)
    _core.free_staging()
    driver.reset_counts()
    yield
    driver.idle()
    assert driver.count("violations") == 0
    assert frames.errors == {}


@pytest.fixture
def stream():
    return driver.Stream()


@pytest.fixture
def expect():
    """Compares values, and tells at the end of the test which differ.

    A rank that stopped at the first one would let the others wait for its next call.
    """
    wrong = []

    def compare(actual, expected, call, **case):
        if actual != expected:
            wrong.append((call.label, case, actual, expected))

    yield compare
    assert wrong == []


def pytest_collection_modifyitems(items):
    for item in items:
        if driver.why_not:
            item.add_marker(pytest.mark.skip(reason=driver.why_not))
