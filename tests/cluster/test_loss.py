"""A host that goes away while a program runs."""

import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import hosts
import pytest

ENDLESS = Path(__file__).parent / "programs" / "endless.py"


@contextmanager
def ends_after(process, seconds):
    """End a process if this takes longer."""
    timer = threading.Timer(seconds, process.terminate)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Program:
    """A program that runs for ever on all hosts, and what it writes to stderr."""

    def __init__(self, process):
        self.process = process
        self.stderr = []
        with ends_after(process, 150):
            assert "it runs\n" in iter(process.stdout.readline, "")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        self.stderr.extend(self.process.stderr)

    def code_after(self, seconds):
        """The exit code, or None if the process still runs after some seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def text(self):
        self._reader.join(2)
        return "".join(self.stderr)


@pytest.fixture
def program(start):
    """Starts it, and ends it."""
    started = []

    def program(**environ):
        started.append(start(ENDLESS, ranks=2, **environ))
        return Program(started[0])

    yield program
    started[0].kill()


def await_end_on(host):
    """Ranks may end after their launcher."""
    command = host.command("pgrep", "--full", "^[^ ]*python.*endless")
    hosts.until(lambda: subprocess.run(command, capture_output=True).returncode, "the end")


def test_a_host_whose_processes_are_killed(program, host, others):
    """mpiexec sees it at once, and Slurm when it takes the host for down."""
    running = program(MPI4JAX_HANG_REPORT="60")
    host.kill()
    assert running.code_after(45) is not None, running.text()
    await_end_on(others[0])


def test_a_host_without_a_network(program, host, others, launcher):
    """Only Slurm sees it soon. mpi4jax names the host, and ends the ranks that it can."""
    running = program(MPI4JAX_HANG_REPORT="3", MPI4JAX_TIMEOUT="8")
    host.unplug()
    code = running.code_after(75 if launcher == "srun" else 20)
    text = running.text()
    assert "  rank  1   does not answer\n" in text
    assert f"no rank on {host.name} answers.\n" in text
    assert "MPI4JAX_TIMEOUT is over: ending all ranks with exit code 86" in text
    await_end_on(others[0])
    if launcher == "srun":
        assert code
