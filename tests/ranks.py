"""What tests share that run on every rank of an `mpiexec`: a plugin of pytest's."""

import faulthandler

import pytest
from mpi4py import MPI

COMM = MPI.COMM_WORLD

# A rank that waits for the others forever must not wait for ever.
faulthandler.dump_traceback_later(240, exit=True)


def pytest_collection_modifyitems(items):
    for item in items:
        needed = item.get_closest_marker("ranks")
        if needed and COMM.Get_size() < needed.args[0]:
            reason = f"needs {needed.args[0]} ranks"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks")


def pytest_report_header(config):
    library = MPI.Get_library_version().splitlines()[0]
    return f"rank {COMM.Get_rank()} of {COMM.Get_size()}, {library}"
