"""Setup of tests that run on every rank of an `mpiexec`: a plugin of pytest's."""

from __future__ import annotations

import os

# Two ranks share one core on small machines: one thread each is plenty.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import pytest
from mpi4py import MPI

from mpi4jax._commands.watchdog import Watchdog

COMM = MPI.COMM_WORLD

#: Seconds for a test. Each takes a few, so even on a slow and busy machine only a test
#: whose ranks wait for each other for ever reaches this.
LIMIT = float(os.environ.get("TEST_LIMIT", 600))


def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks")
    # Here, pytest does not capture yet.
    config.watchdog = Watchdog(os.dup(2), LIMIT)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.config.watchdog.start(item.nodeid)
    try:
        return (yield)
    finally:
        item.config.watchdog.stop()


def pytest_collection_modifyitems(items):
    for item in items:
        needed = item.get_closest_marker("ranks")
        if needed and COMM.Get_size() < needed.args[0]:
            reason = f"needs {needed.args[0]} ranks"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_report_header(config):
    library = MPI.Get_library_version().splitlines()[0]
    return f"rank {COMM.Get_rank()} of {COMM.Get_size()}, {library}"


@pytest.fixture(scope="session")
def comm():
    return COMM


@pytest.fixture(scope="session")
def rank():
    return COMM.Get_rank()


@pytest.fixture(scope="session")
def size():
    return COMM.Get_size()


@pytest.fixture(scope="session")
def default_communicator():
    """Makes the communicator of calls without `comm`, which all ranks do together.

    In the first test, only some of them may communicate.
    """
    from mpi4jax import notoken as mpi

    mpi.barrier()
