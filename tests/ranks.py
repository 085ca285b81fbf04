"""Setup of tests that run on every rank of an `mpiexec`: a plugin of pytest's."""

from __future__ import annotations

import os

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
