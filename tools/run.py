"""Runs the tests in every environment, under mpiexec where they want it.

    python tools/run.py [--only rust|own|range|package|conformance|check|hosts ...]
    python tools/run.py --test mpi/test_docs.py [--ranks 2] [--mpi MPI] [--jax VERSION] ...

The first form prints one line for each run, and the whole output of one that fails. The
second one is for a single test, or a file or folder of them, and shows its output.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import cluster
import conformance
import slurm
from environments import (
    APIS,
    MPIS,
    ROOT,
    Environment,
    add_arguments,
    attempt,
    call,
    mpi_environ,
    output_of,
    prepare,
    tools,
    wheel,
)

TESTS = ROOT / "tests"
#: Seconds for a run. Each test has a limit of its own (tests/ranks.py), so this is for what
#: hangs outside of them.
TIMEOUT = 2700


def under(folder: str, *names: str) -> tuple[str, ...]:
    """The files of tests in a folder, or tests in them ("order::test_loops")."""
    paths = []
    for file, colons, test in (name.partition("::") for name in names):
        (path,) = (TESTS / folder).rglob(f"test_{file}.py")
        paths.append(f"{path.relative_to(TESTS)}{colons}{test}")
    return tuple(paths)


#: What is run on more ranks than two, and with other settings and JAXs than the main ones.
CORE = under("mpi", "operations", "order", "dispatch", "auto_tokenize", "arguments")
#: What depends on the ABI of an MPI.
MPI = under("mpi", "operations", "types::test_reductions", "counts")
#: What moves arrays, in pieces too.
PIECES = (*CORE[:2], *under("mpi", "status"))
#: What depends on how JAX traces and transforms.
JAX = under(
    "mpi", *"autodiff halo linear_token tree vmap docs inputs extend ragged".split()
)
#: The comparison with the Jacobian, which has more blocks the more ranks there are.
JACOBIAN = under("mpi", "autodiff::test_first_derivatives")
#: JAX's own collectives over MPI.
DISTRIBUTED = ("distributed",)
#: Where a process may be its own neighbor.
ALONE = under("mpi", "exchange", "halo", "neighbors", "ragged", "tree")
#: Ghost cells where the processes have parts of different sizes, or two axes are divided.
GRID = under(
    "mpi",
    "halo::test_ghost_cells_are_those_of_the_whole_field",
    "halo::test_both_ways_give_the_same",
    "halo::test_some_fields_are_linear",
)
#: How processes start and end, which depends on the MPI.
LAUNCH = under("process", "commands", "errors", "exit", "watchdog")

#: What runs in XLA's client for CUDA, too, as its kernels call no other library.
ON_KERNELS = under(
    "mpi", *"tokens halo nonblocking exchange status inputs operations".split()
)

MPICH, OPENMPI = Environment("mpich"), Environment("openmpi")
ON_CUDA = Environment("mpich", cuda=True)
NOTOKEN = Environment("mpich", api="notoken")


#: Most of the time would go into compiling what an earlier run has compiled.
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / "build" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


#: How else XLA's client for CUDA and the operations can be set up.
RUNTIME_SETTINGS = (
    (("XLA_PYTHON_CLIENT_ALLOCATOR", "default"),),
    (("MPI4JAX_STAGING_CHUNK", "256"),),
    (("JAX_PLATFORMS", "cuda,cpu"),),
    (
        ("MPI4JAX_USE_CUDA_MPI", "1"),
        ("STAND_IN_OPEN", "1"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "default"),
    ),
)


SETTING_UP = Lock()


class Run(NamedTuple):
    """One run of pytest in an environment, on a number of ranks (0: no mpiexec)."""

    environment: Environment
    ranks: int
    tests: tuple[str, ...] = ("mpi",)
    #: Settings of mpi4jax's.
    environ: tuple[tuple[str, str], ...] = ()
    #: The part of the tests, where another run has all of them (tests/sample.py).
    sample: str = "0/1"
    #: The command that runs it on a cluster (tools/cluster.py).
    cluster: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.tests[0].partition("/")[0]

    @property
    def part(self) -> str:
        return os.environ.get("TEST_SAMPLE", self.sample)

    @property
    def label(self) -> str:
        where = f", {self.ranks} rank(s)" if self.ranks else ""
        what = "" if self.folder == "mpi" else f", {self.folder}"
        what += " on a cluster" if self.cluster else ""
        settings = "".join(f", {name}={value}" for name, value in self.environ)
        sample = "" if self.part == "0/1" else f", sample {self.part}"
        return f"{self.environment.name}{what}{where}{settings}{sample}"

    def command(self, *options: str) -> list[str]:
        path = prepare(self.environment)
        command = [path / "bin" / "python", "-P", "-m", "pytest", "--tb=short"]
        command += ["-p", "no:cacheprovider", "--rootdir", TESTS / self.folder, *options]
        if self.environment.cuda:
            command += ["-p", "cuda_client"]
        command += [TESTS / test for test in self.tests]
        if self.ranks:
            mpiexec = [path / "bin" / "mpiexec"]
            if self.cluster and "openmpi" in self.environment.mpi:
                # Other hosts get no others.
                for name in ("TEST_SAMPLE", *CACHE):
                    mpiexec += ["-x", name]
            command = [*mpiexec, "-n", self.ranks, *command]
        return [*self.cluster, *map(str, command)]

    def settings(self) -> dict[str, str]:
        environ = {**mpi_environ(self.environment.path), **dict(self.environ)}
        environ["TEST_SAMPLE"] = self.part
        # The cache of jaxlib 0.6.0 is broken; mpi4jax would warn of it, and turn it off.
        if self.folder == "mpi" and self.environment.jax != "0.6":
            environ |= CACHE
        if self.folder == "device":
            environ["LD_LIBRARY_PATH"] = str(stand_in(environ.get("STAND_IN", CUDA)))
        elif self.folder == "direct":
            environ["LD_LIBRARY_PATH"] = str(stand_in(CUDA))
            environ["AWARE_MPI"] = str(aware_mpi())
        elif self.environment.cuda and self.folder != "gpu_compiler":
            environ = {**ON_STAND_IN, "LD_LIBRARY_PATH": str(stand_in(CUDA)), **environ}
            # The plugin, and the stand-in for NVIDIA's assembler.
            environ |= {"PYTHONPATH": str(TESTS), "CUDA_ROOT": str(stand_in(CUDA))}
        if self.folder == "package":
            environ |= {f"WHEEL_{api.upper()}": str(wheel(api)) for api in APIS}
            environ["TOOLS"] = str(tools())
            for suite in conformance.SUITES:
                conformance.fetch(suite.version, conformance.ARCHIVES)
            environ["ARCHIVES"] = str(conformance.ARCHIVES)
        return environ

    def __call__(self) -> bool:
        # Two runs that start at once would build the same libraries.
        with SETTING_UP:
            command, environ = self.command("-q", "--color=no"), self.settings()
        return report(self.label, command, environ, max(self.ranks, 1))


def report(label: str, command: list[str], environ: dict[str, str], summaries: int) -> bool:
    """Run a command that prints pytest's closing line a number of times."""
    start = time.monotonic()
    code, output = attempt(command, environ, timeout=TIMEOUT)
    passed = re.findall(r"\d+ passed[^\n]*? in [\d.]+s", output)
    seconds = f"{time.monotonic() - start:.0f} s"
    if code == 0 and len(passed) >= summaries:
        print(f"ok {label}: {re.sub(' in .*', '', passed[0])} ({seconds})", flush=True)
        return True
    print(output)
    print(f"FAILED {label}: exit code {code} ({seconds})", flush=True)
    return False


def own() -> Iterator[Run]:
    """The own tests, on both MPIs and 1 to 4 ranks.

    All of them take too long to run everywhere. Each of `tests/mpi` is in one of the three
    runs on 2 ranks of MPICH, of Open MPI, and of MPICH with the newest JAX (below).
    """
    yield Run(MPICH, 2, sample="0/3")
    yield Run(OPENMPI, 2, sample="1/3")
    yield Run(MPICH, 1, (*CORE, *ALONE), sample="1/8")
    yield Run(OPENMPI, 1, CORE, sample="2/8")
    yield Run(MPICH, 3, (*CORE, *GRID, *JACOBIAN), sample="3/12")
    yield Run(MPICH, 4, (*CORE, *GRID, *JACOBIAN), sample="4/12")
    yield Run(OPENMPI, 4, CORE, sample="5/12")
    yield Run(MPICH, 2, CORE[1:4], (("MPI4JAX_FAST_DISPATCH", "0"),), sample="0/4")
    yield Run(MPICH, 2, PIECES, (("MPI4JAX_STAGING_CHUNK", "16"),), sample="1/4")
    checked = (*CORE, *under("mpi", "tree"))
    yield Run(MPICH, 2, checked, (("MPI4JAX_CHECK", "1"),), sample="3/12")
    yield Run(MPICH, 0, ("process",))
    yield Run(OPENMPI, 0, LAUNCH, sample="1/2")
    yield Run(NOTOKEN, 0, ("process/test_import.py",), sample="0/2")
    yield Run(MPICH, 2, DISTRIBUTED, sample="0/4")
    yield Run(MPICH, 4, DISTRIBUTED, sample="1/16")
    yield Run(OPENMPI, 2, DISTRIBUTED, sample="2/8")
    yield Run(OPENMPI, 4, under("distributed", "programs", "mixed"), sample="3/16")
    over_gloo = (("TEST_COLLECTIVES", "gloo"),)
    yield Run(MPICH, 2, under("distributed", "collectives"), over_gloo, sample="3/8")
    yield Run(MPICH, 0, ("hangs",), sample="0/2")
    yield Run(OPENMPI, 0, ("hangs",), sample="1/2")
    yield Run(MPICH, 2, ("device",), sample="0/3")
    yield Run(OPENMPI, 2, ("device",), sample="1/4")
    yield Run(MPICH, 3, under("device", "results", "pieces"), sample="2/4")
    yield Run(MPICH, 1, under("device", "results"), (("STAND_IN", ROCM),), sample="0/4")
    yield Run(MPICH, 0, ("direct",))
    yield Run(OPENMPI, 0, ("direct",), sample="1/3")
    yield Run(ON_CUDA, 2, ("runtime",), sample="0/3")
    yield Run(ON_CUDA, 3, under("runtime", "operations", "programs"), sample="1/6")
    programs = under("runtime", "programs")
    for settings in RUNTIME_SETTINGS:
        yield Run(ON_CUDA, 2, programs, settings, sample="0/2")
    yield Run(ON_CUDA, 2, ON_KERNELS, sample="0/96")
    yield Run(ON_CUDA, 2, ("gpu_compiler",), sample="0/4")


#: The names under which a driver is looked for.
CUDA, ROCM = "libcuda.so.1", "libamdhip64.so"
#: NVIDIA's other libraries, which the stand-in is, too.
LIBRARIES = (
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudart.so.12",
    "libcudnn.so.9",
    "libnvidia-ml.so.1",
)
#: What XLA's client for CUDA needs to start on the stand-in.
ON_STAND_IN = {
    "JAX_PLATFORMS": "cuda",
    # There are no libraries whose versions could be right.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    # Each array is an allocation of its own.
    "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
    # Measuring kernels gains nothing here, and the stand-in has no CUDA graphs.
    "XLA_FLAGS": " ".join(
        (
            "--xla_gpu_autotune_level=0",
            "--xla_gpu_enable_command_buffer=",
            "--xla_cpu_multi_thread_eigen=false",
        )
    ),
    # XLA may copy from and to any memory of the host's, as the core must not.
    "STAND_IN_PAGEABLE": "1",
}


@cache
def stand_in(name: str) -> Path:
    """A folder with the stand-in for a driver, under the driver's name."""
    driver = built("driver") / "libstand_in_driver.so"
    folder = driver.parents[1] / name
    folder.mkdir(exist_ok=True)
    # Not over the old one, which another run may have loaded.
    shutil.copy(driver, folder / f"new-{os.getpid()}")
    (folder / f"new-{os.getpid()}").replace(folder / name)
    if name == CUDA:
        for library in LIBRARIES:
            # One file, so that all of them are one library for the loader, with one state.
            if not (folder / library).is_symlink():
                (folder / library).symlink_to(name)
        (folder / "bin").mkdir(exist_ok=True)
        shutil.copy(driver.with_name("ptxas"), folder / "bin" / "new")
        (folder / "bin" / "new").replace(folder / "bin" / "ptxas")
    return folder


@cache
def aware_mpi() -> Path:
    """A stand-in for a CUDA-aware MPI, to be preloaded."""
    return built("aware_mpi") / "libaware_mpi.so"


def built(crate: str) -> Path:
    """The folder with the library of a crate of the tests."""
    target = TESTS / crate / "target"
    command = ["cargo", "build", "--quiet", "--locked", "--release"]
    call(
        *command, "--manifest-path", target.with_name("Cargo.toml"), "--target-dir", target
    )
    return target / "release"


def range_() -> Iterator[Run]:
    """The same with other versions of JAX, and the core of them on other MPIs."""
    yield Run(Environment(jax="0.12"), 2, sample="2/3")
    yield Run(Environment(jax="0.12", cuda=True), 2, ("runtime",), sample="1/4")
    yield Run(Environment(jax="0.12", cuda=True), 2, ("gpu_compiler",), sample="0/2")
    yield Run(Environment(jax="0.6"), 2, CORE + JAX, sample="0/24")
    yield Run(Environment(jax="0.8"), 2, CORE + JAX, sample="1/24")
    for name in MPIS:
        if name not in (MPICH.mpi, OPENMPI.mpi):
            yield Run(Environment(name), 2, MPI, sample="0/2")
    yield Run(Environment("standard-abi"), 2, DISTRIBUTED, sample="4/16")
    for index, version in enumerate(("0.6", "0.8", "0.12")):
        yield Run(Environment(jax=version), 2, DISTRIBUTED, sample=f"{index}/16")


def package() -> Iterator[Run]:
    """What is in the wheels, and what type checkers make of it."""
    tools()  # before both ask for them at once
    yield Run(MPICH, 0, ("package",))
    yield Run(NOTOKEN, 0, ("package",))


def in_parallel(runs: Iterator[Run]) -> list[bool]:
    """Do all runs: those on one rank side by side, the others one after another."""
    todo = []
    for run in runs:
        if run.environment.is_possible():
            todo.append(run)
        else:
            print(f"skipped {run.label}: this machine lacks what it needs", flush=True)
    alone = [run for run in todo if run.ranks <= 1]
    for api in dict.fromkeys(run.environment.api for run in todo):
        wheel(api)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, dict.fromkeys(run.environment for run in todo)))
        results = list(pool.map(Run.__call__, alone))
    return results + [run() for run in todo if run.ranks > 1]


#: The headers that the referee looks at: of the MPI of one environment, and of the JAX of
#: another.
HEADERS = ((MPICH, Environment(jax="0.6")), (OPENMPI, Environment(jax="0.12")))


def core() -> list[bool]:
    """Rust's tests of the core."""
    return [cargo_test("rust", ["cargo", "test", "--quiet", "--locked"], {})]


def rust() -> list[bool]:
    """The same, and the referee on the headers of both MPIs and of several JAXs."""
    results = core()
    cargo = ["cargo", "test", "--quiet", "--locked"]
    manifest = ["--manifest-path", str(TESTS / "referee" / "Cargo.toml")]
    clang = output_of(
        tools() / "bin" / "python", "-c", "import clang; print(*clang.__path__)"
    )
    for mpi, jax in HEADERS:
        if not jax.is_possible():
            print(f"skipped the referee on {jax.name}: this machine lacks what it needs")
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
        label = f"referee on the headers of {mpi.name} and {jax.name}"
        results.append(cargo_test(label, [*cargo, *manifest, "--tests"], environ))
    return results


def cargo_test(label: str, command: list[str], environ: dict[str, str]) -> bool:
    start = time.monotonic()
    code, output = attempt(command, environ)
    passed = sum(map(int, re.findall(r"(\d+) passed", output)))
    seconds = f"{time.monotonic() - start:.0f} s"
    if code == 0 and passed:
        print(f"ok {label}: {passed} passed ({seconds})", flush=True)
        return True
    print(output)
    print(f"FAILED {label} ({seconds})", flush=True)
    return False


def check() -> list[bool]:
    """What to run before each commit: what fails most often, in under three minutes."""
    quick = under("mpi", "operations", "order", "inputs", "tokens", "arguments", "logging")
    return [*core(), Run(MPICH, 2, quick)(), Run(MPICH, 0, under("process", "import"))()]


def hosts_() -> list[bool]:
    """Several hosts, made of namespaces, with each MPI, and with Slurm if it is there."""
    if not cluster.is_possible():
        print("skipped hosts: this takes util-linux, iproute2, and root")
        return []
    plain = (sys.executable, str(ROOT / "tools" / "cluster.py"))
    slurm_ = (*plain, "--slurm") if slurm.is_possible() else plain
    if slurm_ == plain:
        print("skipped srun: this takes slurmctld, slurmd, slurm-client, munge, and root")
    runs = []
    # Not Debian's MPICH 4.0: across hosts, its MPI_Finalize hangs (docs/cluster.md).
    for name in ("mpich", "openmpi", "debian-openmpi"):
        environment = Environment(name)
        runs += [
            Run(environment, 0, ("cluster",), cluster=slurm_),
            Run(environment, 2, CORE, sample="0/12", cluster=plain),
            Run(environment, 2, DISTRIBUTED, sample="0/16", cluster=plain),
        ]
    runs.append(Run(MPICH, 0, ("hangs",), sample="0/4", cluster=plain))
    return in_parallel(iter(runs))


PARTS = {
    "rust": rust,
    "own": lambda: in_parallel(own()),
    "range": lambda: in_parallel(range_()),
    "package": lambda: in_parallel(package()),
    "conformance": conformance.run_all,
}


def one(run: Run, options: list[str]) -> int:
    """Run a test in the sight of who wants to see it."""
    command, environ = run.command(*options), run.settings()
    print(f"{run.label}: {shlex.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environ}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    others = {"check": check, "hosts": hosts_}
    parser.add_argument("--only", nargs="+", choices=PARTS | others, default=list(PARTS))
    parser.add_argument("--test", help="a test, a file or a folder, from tests/ on")
    parser.add_argument("--ranks", type=int, help="0: without mpiexec (2, or 0 if it must)")
    parser.add_argument(
        "--options", default="", help="more options for pytest, as one word"
    )
    add_arguments(parser)
    given = parser.parse_args()
    if given.test:
        test = given.test.removeprefix("tests/")
        ranks = given.ranks
        if ranks is None:
            ranks = 0 if test.startswith(("direct", "process", "hangs", "package")) else 2
        cuda = given.cuda or test.startswith(("gpu_compiler", "runtime"))
        environment = Environment(given.mpi, given.jax, given.api, cuda=cuda)
        return one(Run(environment, ranks, (test,)), shlex.split(given.options))
    parts = PARTS | others
    results = [result for part in given.only for result in parts[part]()]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
