"""Programs on several hosts, started by each launcher."""

import re
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
HANGS = Path(__file__).parents[1] / "hangs" / "programs"

DEADLOCK = 86


def test_doctor(run):
    done = run("-m", "mpi4jax", "doctor", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "problem: none" in done.stdout
    assert re.search(r"\n  node0 +rank 0,.*\n  node1 +rank 1,", done.stdout), done.stdout


def test_selftest(run):
    done = run("-m", "mpi4jax", "selftest", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout


def test_shallow_water(run, tmp_path):
    done = run(
        *("examples/shallow_water.py", "--nx=48", "--ny=24", "--days=1"),
        *("--output", "/tmp/picture.png"),
        ranks=2,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def test_sharded(run):
    """JAX's coordinator is reached from the other host."""
    done = run("examples/sharded.py", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| loss ") == 2


def test_a_deadlock_is_reported(run):
    done = run(HANGS / "different_operations.py", ranks=3, MPI4JAX_HANG_REPORT="2")
    assert "nothing has moved for 2 s: ending all ranks with exit code 86" in done.stderr
    assert "disagree about call #2" in done.stderr
    assert done.returncode != 0
