"""Helpers of tests that start processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: The mpiexec of the environment that runs the tests.
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def start(
    *arguments: object, ranks: int = 0, cwd: Path | None = None, **environ: str
) -> subprocess.Popen[str]:
    """Start Python with some arguments on a number of ranks (0: without mpiexec)."""
    command = [sys.executable, *map(str, arguments)]
    if ranks:
        command = [str(MPIEXEC), "-n", str(ranks), *command]
    return start_command(command, cwd, **environ)


def start_command(
    command: Sequence[str], cwd: Path | None = None, **environ: str
) -> subprocess.Popen[str]:
    # Commands print whole sentences in a wide terminal. Tests that are started by tests are
    # in no place that a runner wants to know. Without a buffer, Python writes lines in
    # pieces, which ranks mix.
    environ = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "1000", **environ}
    environ.pop("TEST_PLACES", None)
    environ.pop("PYTHONUNBUFFERED", None)
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a program and all its ranks, and return its output."""
    # Killed at once, mpiexec would leave them behind.
    process.terminate()
    return process.communicate()


def run(
    *arguments: object, timeout: float = 90, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run Python to its end on a number of ranks, and return its output."""
    return _finish(start(*arguments, **options), timeout)  # type: ignore[arg-type]


def run_command(
    command: Sequence[str], timeout: float, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its output."""
    return _finish(start_command(command, **environ), timeout)


def _finish(
    process: subprocess.Popen[str], timeout: float
) -> subprocess.CompletedProcess[str]:
    try:
        output = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        text = "".join(stop(process))
        command = " ".join(map(str, process.args))  # type: ignore[arg-type]
        raise AssertionError(f"{command} took more than {timeout} s:\n{text}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, *output)
