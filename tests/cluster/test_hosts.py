"""Programs on several hosts, started by each launcher."""

import os
import re
import sys
from pathlib import Path

import processes
import pytest

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


@pytest.fixture
def slurm_run():
    """Run a command of Slurm's that starts Python on two hosts."""
    if "SLURM_CONF" not in os.environ:
        pytest.skip("this cluster has no Slurm")

    def slurm_run(launcher, *arguments):
        options = ("--nodes=2", "-n", "2", "--overcommit")
        command = [*launcher, *options, sys.executable, "-P", *arguments]
        return processes.run_command(command, timeout=150)

    return slurm_run


def test_run_in_an_allocation(slurm_run):
    command = ("-m", "mpi4jax", "run", "-n", "2", "--options=--overcommit")
    done = slurm_run(["salloc", "--quiet"], *command, "-m", "mpi4jax", "selftest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^mpi4jax: .*/srun .*--mpi=pm\w+ -n 2 ", done.stderr, re.MULTILINE)
    assert "all is well" in done.stdout


def test_ranks_that_are_alone(slurm_run):
    code = "import jax.numpy as jnp, mpi4jax; mpi4jax.bcast(jnp.ones(1), 0)"
    done = slurm_run(["srun", "--mpi=none"], "-c", code)
    assert done.returncode != 0
    text = (
        "every process is rank 0 of 1, but srun started 2: srun (SLURM_STEP_NUM_TASKS) and "
    )
    assert text in done.stderr, done.stdout + done.stderr


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
