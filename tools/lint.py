"""Checks the form of the sources: rustfmt, clippy, ruff, mypy.

With --fix, formats them instead.
"""

from __future__ import annotations

import subprocess
import sys

from environments import ROOT, Environment, prepare, tools

#: Crates apart from the core's workspace.
REFEREE = ("--manifest-path", "tests/referee/Cargo.toml")
DRIVER = ("--manifest-path", "tests/driver/Cargo.toml")
AWARE_MPI = ("--manifest-path", "tests/aware_mpi/Cargo.toml")


def main() -> int:
    bin_ = tools() / "bin"
    ruff = str(bin_ / "ruff")
    if sys.argv[1:] == ["--fix"]:
        checks = [
            ["cargo", "fmt"],
            ["cargo", "fmt", *REFEREE],
            ["cargo", "fmt", *DRIVER],
            ["cargo", "fmt", *AWARE_MPI],
            [ruff, "check", "--fix", "."],
            [ruff, "format", "."],
        ]
    else:
        clippy = ["cargo", "clippy", "--quiet", "--locked", "--all-targets"]
        checks = [
            ["cargo", "fmt", "--check"],
            ["cargo", "fmt", "--check", *REFEREE],
            ["cargo", "fmt", "--check", *DRIVER],
            ["cargo", "fmt", "--check", *AWARE_MPI],
            [*clippy, "--", "-D", "warnings"],
            [*clippy, *DRIVER, "--", "-D", "warnings"],
            [*clippy, *AWARE_MPI, "--", "-D", "warnings"],
            [*clippy, "--features", "mpi4jax/python", "--", "-D", "warnings"],
            [ruff, "check", "."],
            [ruff, "format", "--check", "."],
            # In an environment with the wheel, so that mpi4py and JAX are known.
            [
                str(bin_ / "mypy"),
                "--python-executable",
                str(prepare(Environment()) / "bin/python"),
            ],
        ]
    failed = [c for c in checks if subprocess.run(c, cwd=ROOT).returncode != 0]
    for command in failed:
        print("FAILED", *command)
    if not failed:
        print(f"ok lint: {len(checks)} checks")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
