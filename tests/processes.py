"""What tests share that start processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: The mpiexec of the environment that runs the tests.
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def start(script: Path, ranks: int, **environ: str) -> subprocess.Popen[str]:
    """Start a program in its folder, on a number of ranks (0: without mpiexec)."""
    command = [sys.executable, "-P", script.name]
    if ranks:
        command = [str(MPIEXEC), "-n", str(ranks), *command]
    return subprocess.Popen(
        command,
        cwd=script.parent,
        env={**os.environ, "XLA_FLAGS": "", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a program and all its ranks, and give back what it has written."""
    # Killed at once, mpiexec would leave them behind.
    process.terminate()
    return process.communicate()


def run(
    script: Path, ranks: int, timeout: float, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, and give back what it did."""
    process = start(script, ranks, **environ)
    try:
        output = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        output = stop(process)
        text = "".join(output)
        raise AssertionError(f"{script.name} took more than {timeout} s:\n{text}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, *output)
