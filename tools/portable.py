"""Checks that the core compiles for other systems, and that it runs on older processors.

Where the compiler has no standard library of a target, this is compiled from its sources,
or from Debian's if it has none. What can't be had is skipped, and said to be, as is QEMU's
user mode emulation. A free-threaded Python need not be here.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping

from debian import LackError, has_standard_library, standard_library_from_source
from environments import attempt
from sanitizers import CARGO_TEST

TARGETS = ("aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-apple-darwin")

#: PyO3's description of an interpreter.
FREE_THREADED = """\
implementation=CPython
version=3.14
shared=true
build_flags=Py_GIL_DISABLED
suppress_build_script_link_lines=true
"""

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


def compiles(target: str) -> bool:
    """Whether the core, its tests and its Python module compile for a target."""
    command = ["cargo", "check", "--quiet", "--locked", "--target", target]
    environ = {"PYO3_NO_PYTHON": "1"}
    if not has_standard_library(target):
        try:
            environ |= standard_library_from_source()
        except LackError as error:
            print(f"skipped {target}: its standard library is not here, and {error}")
            return True
        command.append("-Zbuild-std")
    tests = run(f"{target}, with tests", [*command, "--all-targets"], environ)
    command += ["--features", "mpi4jax/python"]
    return run(f"{target}, for Python", command, environ) and tests


def compiles_without_lock() -> bool:
    """Whether the Python module compiles for a free-threaded Python, which has no abi3."""
    command = ["cargo", "check", "--quiet", "--locked", "--features", "mpi4jax/python"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as config:
        config.write(FREE_THREADED)
        config.flush()
        environ = {"PYO3_CONFIG_FILE": config.name}
        return run("free-threaded Python 3.14", command, environ)


def runs_on(processor: str) -> bool:
    """Whether the tests of half floats pass on an emulated processor."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        print(f"skipped {processor}: qemu-x86_64 is not here")
        return True
    command = [*CARGO_TEST, *HALF_FLOATS]
    runner = {"CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": f"{qemu} -cpu {processor}"}
    return run(f"half floats on {processor}", command, runner)


def main() -> int:
    results = [compiles(target) for target in TARGETS]
    results += [compiles_without_lock()]
    results += [runs_on(processor) for processor in PROCESSORS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
