"""Programs of the documentation that need processes of their own (`tests/pages.py`)."""

import pages
import pytest


@pytest.mark.parametrize("program", pages.programs(own_process=True), ids=lambda p: p.name)
def test_program(program, launch, tmp_path):
    result = launch(program.text, ranks=program.ranks or 2, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
