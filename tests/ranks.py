"""Setup of tests that run on every rank of an `mpiexec`: a plugin of pytest's.

Rank 0 shows its progress. The others print their failures at the end, so that the lines of
ranks do not mix.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from pathlib import Path

# Two ranks share one core on small machines: one thread each is plenty.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import pytest
from _pytest.config import create_terminal_writer
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._commands.watchdog import Watchdog

COMM = MPI.COMM_WORLD

#: Seconds for a test. Each takes a few, so even on a slow and busy machine only a test
#: whose ranks wait for each other for ever reaches this.
LIMIT = float(os.environ.get("TEST_LIMIT", 600))


#: The file in which this rank says which test it is in, if tools/run.py wants to know.
PLACE = Path(os.environ.get("TEST_PLACES", "/nowhere"), f"rank {COMM.Get_rank()}")


@pytest.hookimpl(trylast=True)  # when pytest has made its reporter
def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks")
    config.addinivalue_line("markers", "on_cpus: looks at programs for CPUs")
    # Here, pytest does not capture yet.
    config.watchdog = Watchdog(os.dup(2), LIMIT)
    if COMM.Get_rank() > 0:
        config.pluginmanager.register(LateReport(config))


@pytest.fixture
def every_call():
    """Programs make the calls of one process, too, for tests that look at calls."""
    from mpi4jax._internal.operations import _alone

    _alone.begin_recording()
    yield
    _alone.end_recording()


class LateReport:
    """Keeps what pytest prints on this rank until the end, and prints failures only."""

    def __init__(self, config):
        self.file = io.StringIO()
        self.reporter = config.pluginmanager.getplugin("terminalreporter")
        self.reporter._tw = create_terminal_writer(config, self.file)
        self.has_failed = True

    def pytest_sessionfinish(self, exitstatus):
        self.has_failed = exitstatus != pytest.ExitCode.OK

    def pytest_unconfigure(self):
        text = self.file.getvalue().rstrip()
        name = f"rank {COMM.Get_rank()}"
        failures = re.search(r"^=+ (ERRORS|FAILURES) =+$.*", text, re.M | re.DOTALL)
        if self.has_failed:
            report = f"\n{f' {name} ':=^80}\n{failures[0] if failures else text}\n"
        else:
            report = f"{name}: {text.splitlines()[-1].strip(' =')}\n"
        # In turn, behind rank 0's last lines, so that the reports do not mix.
        time.sleep(0.2 * COMM.Get_rank())
        sys.__stdout__.write(report)
        sys.__stdout__.flush()


def pytest_runtest_logstart(nodeid):
    if PLACE.parent.is_dir():
        PLACE.write_text(nodeid)


def pytest_sessionfinish():
    PLACE.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.config.watchdog.start(item.nodeid)
    try:
        return (yield)
    finally:
        item.config.watchdog.stop()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("on_cpus") and jax.default_backend() != "cpu":
            item.add_marker(pytest.mark.skip(reason="looks at programs for CPUs"))
        needed = item.get_closest_marker("ranks")
        if needed and COMM.Get_size() < needed.args[0]:
            reason = f"needs {needed.args[0]} ranks"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_report_header(config):
    library = MPI.Get_library_version().splitlines()[0]
    return f"rank {COMM.Get_rank()} of {COMM.Get_size()}, {library}"


def settle():
    """Wait for all operations. On GPUs, JAX raises an error that was raised already."""
    from mpi4jax._internal.xla.flush import flush

    raised = () if jax.default_backend() == "cpu" else (jax.errors.JaxRuntimeError,)
    with contextlib.suppress(*raised):
        flush()


@pytest.fixture
def compare_calls():
    """Compares calls as MPI4JAX_CHECK does, and has errors of MPI raised."""
    _core.set_check(True)
    _core.set_raise_on_error(True)
    yield
    settle()
    _core.set_check(False)
    _core.set_raise_on_error(False)


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
