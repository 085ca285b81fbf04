"""Runs tests of the core on aarch64, which QEMU emulates, on Debian for x86_64.

    python tools/emulated.py [--only rust mpich openmpi]
    python tools/emulated.py --only sample

    rust       tests of the core in Rust
    mpich      the wheel and its tests on 2 ranks of MPICH
    openmpi    and of Open MPI
    sample     the core in Rust, and a few operations on MPICH

All that the ranks run is compiled for aarch64: Python and its libraries are Debian's, JAX,
MPI and mpi4py are PyPI's, and the wheel is built as `make release` builds it. Only mpiexec
is this machine's. They are put into .envs/aarch64, which does not take root.
`TEST_SAMPLE=0/1` runs all tests of the files that are chosen, instead of a sample.

What a machine lacks is skipped, and said to be. Times say nothing about aarch64. Nor does
this test its memory order: under QEMU, stores become visible in x86's order.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import debian
from debian import LackError, has_standard_library, unpack
from environments import (
    FOLDER,
    JAX,
    JAXS,
    MPIS,
    ROOT,
    attempt,
    call_mpiexec,
    install,
    make,
    mpi_environ,
)
from release import AARCH64, build_from, toolbox
from runs import QUICK_COMPILATION, TESTS, under
from sanitizers import CARGO_TEST, QUICK_BUILD

HERE = FOLDER / "aarch64"

#: Debian's packages of Python, and of what wheels take from the system.
SYSTEM = ("python3", "libstdc++6", "libgfortran5", "zlib1g")
EMULATOR = "qemu-user-static:amd64"

#: The packages of tests, without the packages of examples and of the original's suites.
PACKAGES = ("mpi4py", "numpy", "perfetto", "pytest", "scipy")

#: Settings that avoid process_vm_readv, which QEMU lacks, and PMIx's tables in shared
#: memory, which contain addresses of functions.
LACKS = {
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    "OMPI_MCA_smsc": "^cma",
    "PMIX_MCA_gds": "hash",
}

#: Seconds for a run, and for a test: only what hangs takes longer, on a busy machine too.
TIMEOUT, LIMIT = 2700, "1800"

#: Tests in Rust of threads, half floats, memory that MPI uses, and the ELF reader.
RUST_TESTS = ("--lib", "--test", "half_floats", "--test", "moving", "--test", "trampoline")
#: A test that starts its own program, which only QEMU can run, and the test in there.
STARTER, STARTED = "nothing_calls_mpi_after_its_end", "flights::the_end_of_mpi"

#: The files and functions of tests that 2 ranks run, by folder.
ON_RANKS = {
    "mpi": (
        "operations",
        "autodiff::test_first_derivatives",
        "tree::test_values",
        "tree::test_derivatives",
        "halo::test_ghost_cells_are_those_of_the_whole_field",
        "halo::test_accumulate_is_the_transpose",
    ),
    "distributed": ("names", "collectives::test_psum", "collectives::test_all_gather"),
}
#: The sample of these tests (tests/sample.py).
SAMPLE = os.environ.get("TEST_SAMPLE", "0/6")
#: The tests on 2 ranks in `make test`: one of each function.
FEW, FEW_OF_EACH = {"mpi": ("operations",)}, "0/999"
#: The programs that hang, each of which starts its own ranks.
HANGS = "crossed_tags or different_roots"

#: The last line of a run of pytest, which ranks beside the first one print with a label.
SUMMARY = r"^(\d+ passed.*?) in [\d.]+s"


@cache
def emulation() -> list[object]:
    """The command that runs a program for aarch64, with Debian's libraries."""
    emulator = unpack(HERE / "qemu", EMULATOR) / "usr" / "bin" / "qemu-aarch64-static"
    return [emulator, "-L", unpack(HERE / "root", *SYSTEM)]


@cache
def environment(mpi: str) -> Path:
    """A virtual environment whose programs are aarch64, but for the shell and mpiexec."""
    path, package = HERE / mpi, MPIS[mpi].package
    requirements = (JAXS[JAX].requirement, *PACKAGES, package)
    stamp = path / "requirements"
    if stamp.exists() and stamp.read_text() == "\n".join(requirements):
        return path
    launcher = HERE / f"launcher-{mpi}"
    make(launcher, (package,), sys.executable)
    print(f"making {path.relative_to(ROOT)}", flush=True)
    shutil.rmtree(path, ignore_errors=True)
    bin_ = path / "bin"
    bin_.mkdir(parents=True)
    emulator, option, root = emulation()
    python = (Path(str(root)) / "usr" / "bin" / "python3").resolve()
    (path / "lib" / python.name / "site-packages").mkdir(parents=True)
    (path / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    # Programs that Python starts are this one again, by its name.
    name = bin_ / "python"
    name.write_text(
        f'#!/bin/sh\nexec "{emulator}" {option} "{root}" -0 "{name}" "{python}" "$@"\n'
    )
    name.chmod(0o755)
    try:
        install(path, *requirements)
    except subprocess.CalledProcessError:
        raise LackError(f"{', '.join(requirements)} could not be installed") from None
    (bin_ / "mpiexec").unlink()  # it may be a link to the installer's file
    call_mpiexec(path, str(launcher / "bin" / "mpiexec"))
    stamp.write_text("\n".join(requirements))
    return path


@cache
def wheel() -> Path:
    """The wheel of this checkout for aarch64."""
    folder = HERE / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    print("building the wheel", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        build_from(ROOT, Path(scratch), folder, AARCH64)
    (built,) = folder.glob("*.whl")
    return built


def prepare_compiler() -> None:
    """Compile for aarch64 with cargo."""
    if not has_standard_library(AARCH64):
        os.environ["RUSTC"] = str(debian.compiler())


def report(label: str, code: int, output: str, expected: str) -> bool:
    """Print a line about a run, or all of its output if it fails."""
    matches = re.findall(expected, output, re.MULTILINE)
    if code == 0 and matches:
        print(f"ok {label}: {', '.join(dict.fromkeys(matches))}", flush=True)
        return True
    print(output)
    print(f"FAILED {label}: exit code {code}", flush=True)
    return False


def rust(*tests: str) -> list[bool]:
    """Tests of the core in Rust, linked by zig: all chosen tests, or some of them."""
    prepare_compiler()
    linker = HERE / "linker"
    # For an older glibc, zig refuses the weak symbols that Rust's library looks for.
    zig = f'"{toolbox()}/bin/maturin" zig cc -- -target aarch64-linux-gnu.2.31'
    linker.write_text(f'#!/bin/sh\nexec {zig} "$@"\n')
    linker.chmod(0o755)
    variable = f"CARGO_TARGET_{AARCH64.upper().replace('-', '_')}"
    environ = {
        f"{variable}_LINKER": str(linker),
        f"{variable}_RUNNER": " ".join(map(str, emulation())),
        "CARGO_ZIGBUILD_ZIG_COMMAND": str(toolbox() / "bin" / "python"),
        "CARGO_ZIGBUILD_ZIG_COMMAND_ARGS": "-m ziglang",
        "CARGO_TARGET_DIR": str(ROOT / "target" / "emulated"),
    }
    test = [*CARGO_TEST, "--target", AARCH64]
    if tests:
        return [run_rust([*test, *tests], environ)]
    commands = (
        [*test, *RUST_TESTS, "--", "--skip", STARTER],
        [*test, "--test", "moving", "--", "--ignored", "--exact", STARTED],
    )
    return [run_rust(command, environ) for command in commands]


def run_rust(command: list[str], environ: dict[str, str]) -> bool:
    code, output = attempt(command, environ, timeout=TIMEOUT)
    total = sum(map(int, re.findall(r"(\d+) passed", output)))
    label = f"rust: {' '.join(command[command.index(AARCH64) + 1 :])}"
    return report(label, code, f"{output}\n{total} passed", r"^\d+ passed$")


def on_ranks(mpi: str, is_whole: bool = True) -> list[bool]:
    """The wheel, its commands and tests on 2 ranks of an MPI."""
    prepare_compiler()
    path = environment(mpi)
    install(path, "--no-deps", "--reinstall", "--link-mode", "copy", wheel())
    environ = {**mpi_environ(path), **LACKS, **QUICK_COMPILATION, "TEST_LIMIT": LIMIT}
    python = [path / "bin" / "python", "-P"]
    mpiexec = [path / "bin" / "mpiexec", "-n", 2, *python]
    command = [*mpiexec, "-m", "mpi4jax"]

    def check(label: str, command: list[object], expected: str, **settings: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            code, output = attempt(
                command, {**environ, **settings}, cwd=folder, timeout=TIMEOUT
            )
        return report(f"{mpi}, {label}", code, output, expected)

    def pytest(folder: str, *arguments: object) -> list[object]:
        plain = ("-q", "--color=no", "--tb=short", "-p", "no:cacheprovider")
        return ["-m", "pytest", *plain, "--rootdir", TESTS / folder, *arguments]

    def check_files(folder: str, names: tuple[str, ...], part: str) -> bool:
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        label = f"{folder}: {', '.join(files)}, sample {part}"
        tests = pytest(folder, *(TESTS / file for file in under(folder, *names)))
        settings = {"PYTHONPATH": str(TESTS), "TEST_SAMPLE": part}
        return check(label, [*mpiexec, *tests], SUMMARY, **settings)

    machine = "import mpi4jax, platform; print(platform.machine(), mpi4jax.__version__)"
    results = [
        check("import", [*python, "-c", machine], r"^aarch64 .*"),
        check("doctor", [*command, "doctor"], r"^problem: none$"),
    ]
    if not is_whole:
        return results + [check_files(*files, FEW_OF_EACH) for files in FEW.items()]
    selftest = [*command, "selftest", "--limit", LIMIT]
    results.append(check("selftest", selftest, r"^all is well"))
    results += [check_files(*files, SAMPLE) for files in ON_RANKS.items()]
    hangs = pytest("hangs", TESTS / "hangs", "-k", f"what_is_reported and ({HANGS})")
    settings = {"PYTHONPATH": str(TESTS), "TEST_SAMPLE": "0/1"}
    results.append(check("hangs", [*python, *hangs], SUMMARY, **settings))
    return results


def sample() -> list[bool]:
    """Memory order and half floats in Rust, and some operations on 2 ranks of MPICH."""
    os.environ.update(QUICK_BUILD, CARGO_PROFILE_RELEASE_OPT_LEVEL="0")
    return [*rust("--lib"), *on_ranks("mpich", is_whole=False)]


WHOLE = {
    "rust": rust,
    "mpich": lambda: on_ranks("mpich"),
    "openmpi": lambda: on_ranks("openmpi"),
}
PARTS = {**WHOLE, "sample": sample}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(WHOLE))
    arguments = parser.parse_args()
    if platform.machine() != "x86_64" or not shutil.which("dpkg"):
        print("skipped: this takes Debian for x86_64")
        return 0
    HERE.mkdir(parents=True, exist_ok=True)
    results = []
    for part in arguments.only:
        try:
            results += PARTS[part]()
        except LackError as error:
            print(f"skipped {part}: {error}", flush=True)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
