"""Checks the form of the sources: rustfmt, clippy, ruff, mypy, words (tools/words.py),
and the forms of operations (tools/forms.py).

With --fix, formats them instead.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from environments import ROOT, Environment, prepare, tools
from steps import Steps

#: The core's workspace, and the crates apart from it: all, and those that clippy looks at.
CORE = ()
REFEREE, DRIVER, AWARE_MPI = (
    ("--manifest-path", f"tests/{crate}/Cargo.toml")
    for crate in ("referee", "driver", "aware_mpi")
)
CRATES = (CORE, REFEREE, DRIVER, AWARE_MPI)
CLIPPY = (CORE, DRIVER, AWARE_MPI, ("--features", "mpi4jax/python"))


def fixes() -> list[list[str]]:
    ruff = str(tools() / "bin" / "ruff")
    cargo = [["cargo", "fmt", *crate] for crate in CRATES]
    return [
        [sys.executable, "tools/forms.py"],
        [sys.executable, "tools/structure.py"],
        *cargo,
        [ruff, "check", "--fix", "."],
        [ruff, "format", "."],
    ]


def checks() -> list[list[str]]:
    bin_ = tools() / "bin"
    clippy = ["cargo", "clippy", "--quiet", "--locked", "--all-targets"]
    # In an environment with the wheel, so that mpi4py and JAX are known.
    python = str(prepare(Environment()) / "bin" / "python")
    return [
        *(["cargo", "fmt", "--check", *crate] for crate in CRATES),
        *([*clippy, *crate, "--", "-D", "warnings"] for crate in CLIPPY),
        [str(bin_ / "ruff"), "check", "."],
        [str(bin_ / "ruff"), "format", "--check", "."],
        [str(bin_ / "mypy"), "--python-executable", python],
        [sys.executable, "tools/forms.py", "--check"],
        [sys.executable, "tools/structure.py", "--check"],
        [sys.executable, "tools/words.py"],
    ]


def main() -> int:
    commands = fixes() if sys.argv[1:] == ["--fix"] else checks()
    steps, failed = Steps(len(commands)), []
    for command in commands:
        text = shlex.join([Path(command[0]).name, *command[1:]])
        steps.begin(text)
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            failed.append(text)
    for text in failed:
        print("FAILED", text)
    if not failed:
        print(f"ok lint: {len(commands)} checks ({steps.took()})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
