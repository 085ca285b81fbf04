"""A short form of a long run (`tests/soak.py`)."""

from pathlib import Path

import processes

SOAK = Path(__file__).parents[1] / "soak.py"


def test_communicators_that_are_freed_leave_nothing():
    """Fails with 20 MB and more if the programs of a halo plan stay."""
    done = processes.run("-P", SOAK, 40, ranks=2, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
