"""Programs in both APIs, as mypy and pyright see them with the installed package.

A comment says what a line reveals, or that it is an error. Nothing else may be one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = {"token": PROGRAMS / "tokens.py", "notoken": PROGRAMS / "notoken.py"}


def expected(program):
    """The comment on each line: the type that it reveals, or "error"."""
    messages = {}
    for line_number, line in enumerate(program.read_text().splitlines(), 1):
        if line.strip().startswith("reveal_type") or line.endswith("# error"):
            messages[line_number] = line.rpartition("  # ")[2]
    return messages


def short(type_):
    """A type without the modules of its names, and without a name for what is plain."""
    return re.sub(r"\b(\w+\.)+(?=\w)", "", type_).replace("builtins.", "")


def checked_by_mypy(program, tools):
    command = [tools / "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--python-executable", sys.executable, program.name]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True)
    messages = {}
    for line in done.stdout.splitlines():
        line_number, kind, text = re.fullmatch(r"[^:]+:(\d+): (\w+): (.*)", line).groups()
        if kind == "error":
            messages[int(line_number)] = "error"
        elif text.startswith("Revealed type is"):
            messages[int(line_number)] = short(text.split('"')[1])
    assert messages, done.stdout + done.stderr
    return messages


def checked_by_pyright(program, tools):
    command = [tools / "pyright", "--outputjson", "--pythonpath", sys.executable, program]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True)
    messages = {}
    for entry in json.loads(done.stdout)["generalDiagnostics"]:
        line_number = entry["range"]["start"]["line"] + 1
        if entry["severity"] == "error":
            messages[line_number] = "error"
        elif entry["severity"] == "information":
            messages[line_number] = short(entry["message"].split('" is "')[1].rstrip('"'))
    return messages


@pytest.mark.parametrize("checker", [checked_by_mypy, checked_by_pyright])
def test_programs(checker, api, tools, tmp_path):
    # In the checkout, the sources would be messages in place of the package.
    program = Path(shutil.copy(PROGRAM[api], tmp_path))
    assert checker(program, tools) == expected(program)


def test_the_stub_of_the_core(tools, tmp_path):
    """It has what the extension module has, with the same arguments."""
    allowed = tmp_path / "allowed"
    allowed.write_text("mpi4jax._core.__all__\n")  # made by PyO3
    command = [tools / "python", "-m", "mypy.stubtest", "mpi4jax._core"]
    command += ["--allowlist", allowed]
    environ = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Success: no issues found in 1 module" in done.stdout
