"""A host that goes away while a program runs."""

import subprocess
import threading
from pathlib import Path

import pytest

ENDLESS = Path(__file__).parent / "programs" / "endless.py"


class Program:
    """A program that runs for ever on all hosts, and what it writes to stderr."""

    def __init__(self, process):
        self.process = process
        self.stderr = []
        assert "it runs\n" in iter(process.stdout.readline, "")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        self.stderr.extend(self.process.stderr)

    def code_after(self, seconds):
        """The exit code, or None if it still runs after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def text(self):
        return "".join(self.stderr)


@pytest.fixture
def program(start):
    """Starts it, and ends it."""
    started = []

    def program(**environ):
        started.append(Program(start(ENDLESS, ranks=2, **environ)))
        return started[0]

    yield program
    started[0].process.kill()


def ranks_on(host):
    """How many ranks run on a host."""
    command = host.command("pgrep", "--count", "--full", "^[^ ]*python.*endless")
    return int(subprocess.run(command, capture_output=True, text=True).stdout)


def test_a_host_that_is_switched_off(program, host, others):
    """All launchers see it at once, or when Slurm takes the host for down."""
    running = program(MPI4JAX_HANG_REPORT="60")
    host.kill()
    assert running.code_after(45) is not None, running.text()
    assert ranks_on(others[0]) == 0


def test_a_host_without_a_network(program, host, others, launcher):
    """Only Slurm sees it soon. mpi4jax names the host, and ends the ranks that it can."""
    running = program(MPI4JAX_HANG_REPORT="3", MPI4JAX_TIMEOUT="8")
    host.unplug()
    code = running.code_after(25)
    text = running.text()
    assert "  rank  1   does not answer\n" in text
    assert f"no rank on {host.name} answers.\n" in text
    assert "MPI4JAX_TIMEOUT is over: ending all ranks with exit code 86" in text
    assert ranks_on(others[0]) == 0
    if launcher == "srun":
        assert code
