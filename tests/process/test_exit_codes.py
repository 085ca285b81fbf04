"""Tools that run programs see their exit codes, although the import replaces `sys.exit`."""

import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing
import pickle
import sys

import mpi4jax


def fail():
    sys.exit(5)


if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
    if "child" in sys.argv:
        child = multiprocessing.get_context("spawn").Process(target=fail)
        child.start()
        child.join()
        print("child:", child.exitcode)
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("", 3),
        ("coverage run", 3),
        ("debugpy --listen 0", 3),
        ("IPython --no-banner", 3),
        # It says so, and starts the program again, until it is told to quit. In 3.11,
        # a program under it can't spawn.
        ("pdb -c continue", 0),
    ],
    ids=["python", "coverage", "debugpy", "IPython", "pdb"],
)
def test_exit_code(tool, code, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, *(["-m", *tool.split()] if tool else []), "program.py"]
    if code:
        command.append("child")
    done = subprocess.run(
        command, cwd=tmp_path, input="quit\n", capture_output=True, text=True, timeout=150
    )
    assert done.returncode == code, done.stderr
    assert ("child: 5\n" if code else "Exit status: 3\n") in done.stdout
