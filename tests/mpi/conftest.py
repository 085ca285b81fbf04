"""Tests that run on every rank of an `mpiexec`, with any number of ranks."""

import os
import re
from collections import Counter

# Two ranks share one core on small machines: one thread each is plenty.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import pytest
from mpi4py import MPI

pytest_plugins = ["ranks", "sample"]

COMM = MPI.COMM_WORLD


@pytest.fixture(autouse=True, scope="session")
def _make_default_communicator():
    """All ranks make it together: in the first test, only some may communicate."""
    from mpi4jax import notoken as mpi

    mpi.barrier()


@pytest.fixture(autouse=True)
def _start_together():
    """Keep a rank's next test from sending to another rank's last one."""
    COMM.Barrier()


@pytest.fixture
def enable_x64():
    import jax

    old = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", old)


@pytest.fixture
def comm():
    return COMM


@pytest.fixture
def rank():
    return COMM.Get_rank()


@pytest.fixture
def size():
    return COMM.Get_size()


@pytest.fixture
def log_of(capsys):
    """Calls a function, and gives its result, and the debug lines."""
    import jax

    from mpi4jax import notoken as mpi
    from mpi4jax._core import set_logging

    def call(function, *args):
        capsys.readouterr()
        set_logging(True)
        try:
            result = jax.block_until_ready(function(*args))
            jax.effects_barrier()
            mpi.barrier(comm=MPI.COMM_SELF)  # ordered behind the call
        finally:
            set_logging(False)
        *lines, _, last = capsys.readouterr().out.splitlines()
        assert "| MPI_Barrier done with code 0 " in last
        return result, lines

    return call


@pytest.fixture
def sequence_of(log_of):
    """Calls a function, and gives its result, and what it called of MPI's, in order."""

    def call(function, *args):
        result, lines = log_of(function, *args)
        return result, re.findall(r"\| MPI_(\w+) done with code 0 ", "\n".join(lines))

    return call


@pytest.fixture
def calls_of(sequence_of):
    """Calls a function, and gives its result, and how often it called what of MPI's.

    The latter is a Counter({"Send": 1}), say.
    """

    def call(function, *args):
        result, sequence = sequence_of(function, *args)
        return result, Counter(sequence)

    return call
