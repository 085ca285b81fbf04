"""Tests that run on every rank of an `mpiexec`, with any number of ranks."""

import re
from collections import Counter

import pytest
from mpi4py import MPI

pytest_plugins = ["ranks", "sample"]


@pytest.fixture(autouse=True)
def _start_together(default_communicator):
    """Keep a rank's next test from sending to another rank's last one."""
    MPI.COMM_WORLD.Barrier()


@pytest.fixture
def enable_x64():
    import jax

    old = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", old)


@pytest.fixture
def log_of(capsys):
    """Calls a function, and returns its result and the debug lines."""
    import jax

    from mpi4jax import notoken as mpi
    from mpi4jax._internal.operations import _alone

    def call(function, *args):
        capsys.readouterr()
        _alone.set_logging(True)
        try:
            result = jax.block_until_ready(function(*args))
            jax.effects_barrier()
            mpi.barrier(comm=MPI.COMM_SELF)  # ordered behind the call
        finally:
            _alone.set_logging(False)
        *lines, _, last = capsys.readouterr().out.splitlines()
        assert "| MPI_Barrier done with code 0 " in last
        return result, lines

    return call


@pytest.fixture
def sequence_of(log_of):
    """Calls a function, and returns its result and the names of its MPI calls, in order."""

    def call(function, *args):
        result, lines = log_of(function, *args)
        return result, re.findall(r"\| MPI_(\w+) done with code 0 ", "\n".join(lines))

    return call


@pytest.fixture
def calls_of(sequence_of):
    """Calls a function, and returns its result and a Counter({"Send": 1}) of MPI calls."""

    def call(function, *args):
        result, sequence = sequence_of(function, *args)
        return result, Counter(sequence)

    return call
