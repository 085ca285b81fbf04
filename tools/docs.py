"""Builds the documentation, and that of the core. Warnings are errors."""

from __future__ import annotations

import subprocess
import sys

from environments import DOCS, ROOT, Environment, call, install, prepare


def main() -> int:
    path = prepare(Environment())
    install(path, *DOCS)
    sphinx = (path / "bin" / "python", "-P", "-m", "sphinx", "-W", "-q", "--keep-going")
    failed = subprocess.run([*map(str, sphinx), "docs", "build/docs"], cwd=ROOT).returncode
    core = ("cargo", "doc", "--quiet", "--locked", "--no-deps", "--document-private-items")
    call(*core, RUSTDOCFLAGS="-D warnings")
    return failed


if __name__ == "__main__":
    sys.exit(main())
