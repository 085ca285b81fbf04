"""Checks that the core compiles for other systems, and that it runs on older processors.

What a machine lacks is skipped, and said to be: the standard library of a target (or its
sources, which are compiled then), and QEMU's user mode emulation.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from environments import attempt, output_of

TARGETS = ("aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-apple-darwin")

#: Each has more than those before it: nothing that the core asks for, AVX, F16C, AVX2.
PROCESSORS = ("Nehalem", "SandyBridge", "IvyBridge", "Haswell")

#: The tests of what depends on the processor.
HALF_FLOATS = ("--lib", "--test", "half_floats", "--", "half")


def run(label: str, command: list[str], environ: Mapping[str, str]) -> bool:
    code, output = attempt(command, environ)
    # QEMU lacks instructions that the core does not use, and says so.
    warnings = re.findall(r"(?m)^warning: ", output)
    failed = code != 0 or bool(warnings)
    if failed:
        print(output)
    print("FAILED" if failed else "ok", label, flush=True)
    return not failed


def libraries() -> Path:
    """Where the compiler has the standard libraries of its targets."""
    rustc = os.environ.get("RUSTC", "rustc")
    return Path(output_of(rustc, "--print", "sysroot"), "lib", "rustlib")


def has_standard_library(target: str) -> bool:
    return (libraries() / target / "lib").is_dir()


def compiles(target: str) -> bool:
    """Whether the core, its tests and its Python module compile for a target."""
    command = ["cargo", "check", "--quiet", "--locked", "--target", target]
    environ = {"PYO3_NO_PYTHON": "1"}
    if not has_standard_library(target):
        if not (libraries() / "src" / "rust" / "library" / "Cargo.toml").exists():
            print(f"skipped {target}: neither its standard library is here nor the sources")
            return True
        command.append("-Zbuild-std")
        environ["RUSTC_BOOTSTRAP"] = "1"
    tests = run(f"{target}, with tests", [*command, "--all-targets"], environ)
    command += ["--features", "mpi4jax/python"]
    return run(f"{target}, for Python", command, environ) and tests


def runs_on(processor: str) -> bool:
    """Whether the tests of half floats pass on an emulated processor."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        print(f"skipped {processor}: qemu-x86_64 is not here")
        return True
    command = ["cargo", "test", "--quiet", "--locked", *HALF_FLOATS]
    runner = {"CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": f"{qemu} -cpu {processor}"}
    return run(f"half floats on {processor}", command, runner)


def main() -> int:
    results = [compiles(target) for target in TARGETS]
    results += [runs_on(processor) for processor in PROCESSORS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
