"""A test whose ranks wait for each other for ever: every rank says which one it is in."""

import re
from pathlib import Path

import processes

TESTS = Path(__file__).parent.parent

DEADLOCK = """
import pytest
from mpi4py import MPI


@pytest.mark.parametrize("size", [2])
def test_barrier(size):
    assert MPI.COMM_WORLD.Get_size() == size
    if MPI.COMM_WORLD.Get_rank() == 0:
        MPI.COMM_WORLD.Barrier()


def test_after_it():
    MPI.COMM_WORLD.Recv(bytearray(1), source=0)
"""


def test_every_rank_says_where_it_is(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["ranks"]')
    (tmp_path / "test_deadlock.py").write_text(DEADLOCK)
    done = processes.run(
        *("-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("--rootdir", tmp_path, tmp_path),
        ranks=2,
        timeout=120,
        TEST_LIMIT="3",
        PYTHONPATH=str(TESTS),
    )
    assert done.returncode != 0
    output = done.stdout + done.stderr
    for rank, test in ((0, r"test_barrier\[2\]"), (1, "test_after_it")):
        text = rf"rank {rank} of 2 has been in test_deadlock.py::{test} for 3 s"
        assert re.search(text, output), output
    assert output.count("most recent call first") >= 2, output
