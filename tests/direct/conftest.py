"""Tests of programs that let MPI work on the memory of GPUs, in processes of their own.

The stand-in of tests/driver is the driver (by LD_LIBRARY_PATH), and tests/aware_mpi makes a
CUDA-aware MPI of the real one, which crashes where such an MPI does. JAX finds a
plugin without a device, so that it might use a GPU. As XLA has none, programs are compiled
for one and their calls made with frames, as in tests/device.
"""

import os
import re
from pathlib import Path
from textwrap import dedent

import processes
import pytest

pytest_plugins = ["sample"]

FOLDER = Path(__file__).parent

#: The folders of modules besides the packages that are installed.
PATH = os.pathsep.join(
    map(str, (FOLDER, FOLDER / "plugins", FOLDER.parent / "device", FOLDER.parent / "mpi"))
)

#: One GPU for each process, and an MPI that is like the newest Open MPI.
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "0",
    "AWARE_MPI_VERSION": "Open MPI v5.0.11, package: stand-in",
    "AWARE_MPI_KINDS": "pool,mapped",
    "PYTHONPATH": PATH,
    "PYTHONWARNINGS": "always::UserWarning",
}

#: The messages of MPIs and launchers about a process that ended by a signal.
OURS = re.compile(r"^(mpi4jax: |r\d+ \| |.*Warning: MPI)")


class Outcome:
    """The output of a program, and the messages about it."""

    def __init__(self, done, program):
        self.program = program.splitlines()
        self.code = done.returncode
        self.output = sorted(done.stdout.splitlines())
        self.errors = done.stderr
        lines = [line for line in done.stderr.splitlines() if OURS.match(line)]
        #: The lines of ours, without the place in front of a warning.
        self.lines = sorted(re.sub(r"^.*Warning: ", "", line) for line in lines)

    def __repr__(self):
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


@pytest.fixture
def start(tmp_path):
    """Run a program, and say what came of it. `environ` overrides the settings."""

    def start(code, ranks=1, *, preload=True, environ=None):
        script = tmp_path / "program.py"
        script.write_text(dedent(code))
        settings = {**SETTINGS, **(environ or {})}
        if preload:
            settings["LD_PRELOAD"] = os.environ["AWARE_MPI"]
        done = processes.run(script, ranks=ranks, cwd=tmp_path, **settings)
        return Outcome(done, dedent(code))

    return start
