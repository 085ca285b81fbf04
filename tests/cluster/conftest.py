"""Tests on the login node of a cluster, where `make hosts` starts them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

import hosts  # noqa: E402
import slurm  # noqa: E402

pytest_plugins = ["sample"]

FOLDER = Path(os.environ[hosts.FOLDER])
#: One thread is plenty for each rank.
ENVIRON = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


@pytest.fixture(scope="session")
def is_open_mpi():
    command = [processes.MPIEXEC, "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    return "HYDRA" not in done.stdout


@pytest.fixture(params=["mpiexec", "srun"])
def launcher(request):
    """The launcher of the ranks."""
    if request.param == "srun" and "SLURM_CONF" not in os.environ:
        pytest.skip("this cluster has no Slurm")
    return request.param


@pytest.fixture
def start(launcher, is_open_mpi):
    """Start Python with some arguments, on one rank after the other on each host."""

    def start(*arguments, ranks, **environ):
        environ = ENVIRON | environ
        if launcher == "srun":
            kind = "pmix" if is_open_mpi else "pmi2"
            command = ["srun", f"--mpi={kind}", "--overcommit", "--nodes=2", "-n", ranks]
        else:
            # Open MPI does not take the variables of its caller with it, MPICH does.
            exports = [("-x", name) for name in environ] if is_open_mpi else []
            command = [processes.MPIEXEC, *sum(exports, ()), "-n", ranks]
        command += [sys.executable, "-P", *arguments]
        print(shlex.join(map(str, command)))
        return subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def run(start):
    """Run Python to its end on a number of ranks, and return its output."""

    def run(*arguments, ranks, timeout=150, **environ):
        process = start(*arguments, ranks=ranks, **environ)
        try:
            output = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            text = "".join(processes.stop(process))
            raise AssertionError(f"took more than {timeout} s:\n{text}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, *output)

    return run


@pytest.fixture
def others():
    """The hosts that stay."""
    return hosts.hosts_of(FOLDER)[:-1]


@pytest.fixture
def host():
    """The host that goes away, and is there again for the next test."""
    host = hosts.hosts_of(FOLDER)[-1]
    yield host
    host.kill()
    host.start()
    if "SLURM_CONF" in os.environ:
        slurm.start_on(host)
