"""Tests that start processes of their own: their exit, their output, their environment."""

from textwrap import dedent

import processes
import pytest

pytest_plugins = ["sample"]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """Commands print whole sentences."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def launch(tmp_path):
    """Run a program on a number of ranks (0: without mpiexec) and give back what it did."""

    def launch(code, ranks=1, **options):
        script = tmp_path / "program.py"
        script.write_text(dedent(code))
        return processes.run(script, ranks=ranks, **options)

    return launch
