"""Runs the tests in every environment, under mpiexec where they want it.

    python tests/run.py [--only rust|own|range|conformance ...]

Prints one line for each run, and the whole output of one that fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import conformance
from environments import ENVIRONMENTS, ROOT, call, prepare, tools, wheel

TESTS = ROOT / "tests"
TIMEOUT = 900

#: What is run on more ranks than two, and with other settings and JAXs than the main ones.
CORE = tuple(
    f"test_{name}.py"
    for name in "operations order dispatch auto_tokenize arguments".split()
)
#: What depends on the MPI.
MPI = (*CORE[:2], "test_types.py::test_reductions", "test_counts.py")
#: What moves arrays, in pieces too.
PIECES = (*CORE[:2], "test_status.py")
#: Those of processes of their own that depend on the MPI.
PROCESS = ("test_errors.py", "test_exit.py", "test_dispatch.py")
#: What depends on how JAX traces and transforms.
JAX = ("test_autodiff.py", "test_vmap.py", "test_docs.py")
#: What is run with other JAXs: all of that with the oldest and the newest.
FILES = {"jax-0.6": CORE + JAX, "jax-0.8": CORE, "jax-0.12": CORE + JAX}
#: The comparison with the Jacobian, which has more blocks the more ranks there are.
JACOBIAN = ("test_autodiff.py::test_linear", "test_autodiff.py::test_first_derivatives")


class Run(NamedTuple):
    """One run of pytest in an environment, on a number of ranks (0: no mpiexec)."""

    environment: str
    ranks: int
    files: tuple[str, ...] = ()
    #: Settings of mpi4jax's.
    environ: tuple[tuple[str, str], ...] = ()
    folder: str = "mpi"

    @property
    def label(self) -> str:
        where = f", {self.ranks} rank(s)" if self.ranks else ""
        what = "" if self.folder == "mpi" else f", {self.folder}"
        settings = "".join(f", {name}={value}" for name, value in self.environ)
        return f"{self.environment}{what}{where}{settings}"

    def __call__(self) -> bool:
        path = prepare(self.environment)
        folder = TESTS / self.folder
        command = [path / "bin" / "python", "-P", "-m", "pytest", "-q", "--color=no"]
        command += ["-p", "no:cacheprovider", "--tb=short", "--rootdir", folder]
        command += [folder / file for file in self.files] or [folder]
        if self.ranks:
            command = [path / "bin" / "mpiexec", "-n", str(self.ranks), *command]
        environ = {**conformance.mpi_environ(path), **dict(self.environ)}
        if self.folder == "device":
            environ["LD_LIBRARY_PATH"] = str(stand_in(environ.get("STAND_IN", CUDA)))
        return report(self.label, command, environ, max(self.ranks, 1))


def report(label: str, command: list, environ: dict[str, str], summaries: int) -> bool:
    """Run a command that prints pytest's closing line a number of times."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = (error.output or b"").decode(errors="replace"), 124
    passed = re.findall(r"\d+ passed[^\n]*? in [\d.]+s", output)
    seconds = f"{time.monotonic() - start:.0f} s"
    if code == 0 and len(passed) >= summaries:
        print(f"ok {label}: {re.sub(' in .*', '', passed[0])} ({seconds})", flush=True)
        return True
    print(output)
    print(f"FAILED {label}: exit code {code} ({seconds})", flush=True)
    return False


def own() -> Iterator[Run]:
    """The own tests, on both MPIs and 1 to 4 ranks."""
    for name in ("mpich", "openmpi"):
        yield Run(name, 1)
    yield Run("mpich", 0, folder="process")
    yield Run("openmpi", 0, PROCESS, folder="process")
    for name in ("mpich", "openmpi"):
        yield Run(name, 2)
        yield Run(name, 2, folder="device")
    yield Run("mpich", 1, folder="device")
    yield Run("mpich", 1, ("test_results.py",), (("STAND_IN", ROCM),), "device")
    yield Run("mpich", 3, ("test_results.py", "test_pieces.py"), folder="device")
    yield Run("mpich", 3, (CORE[0], *JACOBIAN))
    yield Run("mpich", 4, (CORE[1], *JACOBIAN))
    yield Run("openmpi", 4, CORE[:2])
    yield Run("mpich", 2, CORE, (("MPI4JAX_FAST_DISPATCH", "0"),))
    yield Run("mpich", 2, PIECES, (("MPI4JAX_STAGING_CHUNK", "16"),))


#: The names under which a driver is looked for.
CUDA, ROCM = "libcuda.so.1", "libamdhip64.so"


@cache
def stand_in(name: str) -> Path:
    """A folder with the stand-in for a driver, under the driver's name."""
    target = TESTS / "driver" / "target"
    manifest = TESTS / "driver" / "Cargo.toml"
    command = ["cargo", "build", "--quiet", "--locked", "--release"]
    call(*command, "--manifest-path", manifest, "--target-dir", target)
    folder = target / name
    folder.mkdir(exist_ok=True)
    shutil.copy(target / "release" / "libstand_in_driver.so", folder / name)
    return folder


def range_() -> Iterator[Run]:
    """The core of them with other MPIs and other versions of JAX."""
    for name, environment in ENVIRONMENTS.items():
        if name in ("mpich", "openmpi") or environment.peer:
            continue
        if environment.is_possible():
            yield Run(name, 2, FILES.get(name, MPI))
        else:
            print(f"skipped {name}: this machine lacks what it needs", flush=True)


def in_parallel(runs: Iterator[Run]) -> list[bool]:
    """Do all runs: those on one rank side by side, the others one after another."""
    todo = list(runs)
    alone = [run for run in todo if run.ranks <= 1]
    wheel()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, dict.fromkeys(run.environment for run in todo)))
        results = list(pool.map(Run.__call__, alone))
    return results + [run() for run in todo if run.ranks > 1]


#: The headers that the referee looks at: of the MPI of one environment, and of the JAX of
#: another.
HEADERS = (("mpich", "jax-0.6"), ("mpich", "jax-0.12"), ("openmpi", "mpich"))


def rust() -> list[bool]:
    """Rust's tests, and the referee on the headers of both MPIs and of several JAXs."""
    cargo = ["cargo", "test", "--quiet", "--locked"]
    results = [cargo_test("rust", cargo, {})]
    manifest = ["--manifest-path", str(TESTS / "referee" / "Cargo.toml")]
    clang = output_of(
        tools() / "bin" / "python", "-c", "import clang; print(*clang.__path__)"
    )
    for mpi, jax in HEADERS:
        if not ENVIRONMENTS[jax].is_possible():
            print(f"skipped the referee on {jax}: this machine lacks what it needs")
            continue
        python = prepare(jax) / "bin" / "python"
        environ = {
            # libclang comes from PyPI, and without the headers of the compiler's own.
            "LIBCLANG_PATH": f"{clang}/native",
            "BINDGEN_EXTRA_CLANG_ARGS": f"-I{output_of('gcc', '-print-file-name=include')}",
            "XLA_FFI_INCLUDE": output_of(
                python, "-P", "-c", "import jax; print(jax.ffi.include_dir())"
            ),
            "MPICC": str(prepare(mpi) / "bin" / "mpicc"),
            "CARGO_TARGET_DIR": str(TESTS / "referee" / "target"),
        }
        # mpi-sys does not notice that it should look at another MPI.
        clean = ["cargo", "clean", "--quiet", *manifest, "-p", "mpi-sys", "-p", "referee"]
        subprocess.run(clean, env={**os.environ, **environ}, check=False)
        label = f"referee on the headers of {mpi} and {jax}"
        results.append(cargo_test(label, [*cargo, *manifest, "--tests"], environ))
    return results


def output_of(*command: object) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def cargo_test(label: str, command: list[str], environ: dict[str, str]) -> bool:
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    passed = sum(map(int, re.findall(r"(\d+) passed", done.stdout)))
    seconds = f"{time.monotonic() - start:.0f} s"
    if done.returncode == 0 and passed:
        print(f"ok {label}: {passed} passed ({seconds})", flush=True)
        return True
    print(done.stdout)
    print(f"FAILED {label} ({seconds})", flush=True)
    return False


PARTS = {
    "rust": rust,
    "own": lambda: in_parallel(own()),
    "range": lambda: in_parallel(range_()),
    "conformance": lambda: conformance.run_all([prepare("mpich"), prepare("openmpi")]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    results = [result for part in parser.parse_args().only for result in PARTS[part]()]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
