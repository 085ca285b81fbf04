"""What tests share that run on every rank of an `mpiexec`: a plugin of pytest's."""

from __future__ import annotations

import faulthandler
import os
import threading
import time

import pytest
from mpi4py import MPI

COMM = MPI.COMM_WORLD

#: Seconds for a test. Each takes a few, so even on a slow and busy machine only a test
#: whose ranks wait for each other for ever reaches this.
LIMIT = float(os.environ.get("TEST_LIMIT", 600))
#: Seconds until a process ends itself, so that the others say where they are as well.
GRACE = 10


class Watchdog:
    """Says on each rank which test it is in, and ends the process, if it takes too long."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.timer: threading.Timer | None = None

    def start(self, test: str) -> None:
        self.timer = threading.Timer(LIMIT, self.report, [test])
        self.timer.daemon = True
        self.timer.start()
        # The timer needs the GIL. Should the test hold it for ever, this does without.
        faulthandler.dump_traceback_later(LIMIT + GRACE, exit=True, file=self.fd)

    def stop(self) -> None:
        assert self.timer is not None
        self.timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def report(self, test: str) -> None:
        rank = f"rank {COMM.Get_rank()} of {COMM.Get_size()}"
        text = f"\n{rank} has been in {test} for {LIMIT:g} s\n"
        os.write(self.fd, text.encode())
        faulthandler.dump_traceback(self.fd, all_threads=True)
        time.sleep(GRACE / 2)
        os._exit(70)


def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks")
    # Here, pytest does not capture yet.
    config.watchdog = Watchdog(os.dup(2))


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
