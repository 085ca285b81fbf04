"""Tests that start processes of their own: their exit, their output, their environment."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

#: The mpiexec of the environment that runs the tests.
MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.fixture
def launch(tmp_path):
    """Run a program on a number of ranks (0: without mpiexec) and give back what it did."""

    def launch(code, ranks=1, timeout=90, cwd=None, **environ):
        script = tmp_path / "program.py"
        script.write_text(dedent(code))
        command = [sys.executable, str(script)]
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

    return launch
