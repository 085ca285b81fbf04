"""Tests that start processes of their own: their exit, their output, their environment."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

#: The mpiexec of the environment that runs the tests.
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def run(*arguments, ranks=0, timeout=90, cwd=None, **environ):
    """Run Python with some arguments on a number of ranks (0: without mpiexec)."""
    command = [sys.executable, *map(str, arguments)]
    if ranks:
        command = [str(MPIEXEC), "-n", str(ranks), *command]
    return subprocess.run(
        command,
        env={**os.environ, "XLA_FLAGS": "", **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )


@pytest.fixture
def launch(tmp_path):
    """Run a program on a number of ranks (0: without mpiexec) and give back what it did."""

    def launch(code, ranks=1, timeout=90, cwd=None, **environ):
        script = tmp_path / "program.py"
        script.write_text(dedent(code))
        return run(script, ranks=ranks, timeout=timeout, cwd=cwd, **environ)

    return launch
