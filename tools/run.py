"""Runs the tests in every environment, under mpiexec where they want it (tools/runs.py).

    python tools/run.py [--only rust|own|range|package|conformance|check|...]
    python tools/run.py --only range --jax 0.13.1
    python tools/run.py --test mpi/test_docs.py [--ranks 2] [--mpi MPI] [--jax VERSION] ...

The first form prints one line for each run, and the whole output of one that fails. The
second one shows what a version of JAX breaks, which need not be in the table. The third one
is for a single test, or a file or folder of them, and shows its output.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import cluster
import conformance
import runs
import sanitizers
import slurm
from environments import (
    JAX,
    ROOT,
    Environment,
    add_arguments,
    attempt,
    chosen,
    output_of,
    prepare,
    tools,
    wheel,
)
from runs import MPICH, OPENMPI, TESTS, Run, under
from sample import SHARE, is_whole, part_of
from sanitizers import CARGO_TEST
from steps import Steps

#: Timeout of a run in seconds, for hangs outside of tests: each test has its own limit
#: (tests/ranks.py).
TIMEOUT = 2700

SETTING_UP = Lock()


def execute(run: Run) -> bool:
    """Do a run, and print a line about it, or all of its output if it fails."""
    # Two runs that start at once would build the same libraries.
    with SETTING_UP:
        command, environ = run.command("-q", "--color=no"), run.settings()
    return report(run.label, command, environ, max(run.ranks, 1))


def report(label: str, command: list[str], environ: dict[str, str], ranks: int = 0) -> bool:
    """Run pytest on some ranks (or `cargo test`: 0), each of which prints a summary."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environ = {**environ, "TEST_PLACES": folder}
        code, output = attempt(command, environ, timeout=TIMEOUT)
        output += places(folder)
    summaries = re.findall(r"\d+ passed.*?(?= in [\d.]+s|; 0 failed)", output)
    seconds = f"{time.monotonic() - start:.0f} s"
    if code == 0 and len(summaries) >= max(ranks, 1):
        # Cargo has a summary for each file of tests.
        total = sum(int(summary.split()[0]) for summary in summaries)
        summary = summaries[0] if ranks else f"{total} passed"
        print(f"ok {label}: {summary} ({seconds})", flush=True)
        return True
    print(output)
    print(f"FAILED {label}: exit code {code} ({seconds})", flush=True)
    return False


def places(folder: str) -> str:
    """The current test of each rank that ended in a test."""
    files = sorted(Path(folder).iterdir(), key=lambda file: int(file.name.split()[1]))
    return "".join(f"{file.name} ended in {file.read_text()}\n" for file in files)


def execute_all(some_runs: Iterable[Run]) -> list[bool]:
    """Do all runs: runs on one rank side by side, the others one after another."""
    todo = []
    for run in some_runs:
        if run.environment.is_possible():
            todo.append(run)
        else:
            print(f"skipped {run.label}: this machine lacks what it needs", flush=True)
    for api in dict.fromkeys(run.environment.api for run in todo):
        wheel(api)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, dict.fromkeys(run.environment for run in todo)))
        results = list(pool.map(execute, [run for run in todo if run.ranks <= 1]))
    return results + [execute(run) for run in todo if run.ranks > 1]


#: Environments whose headers the referee reads: for MPI's headers, and for JAX's.
HEADERS = ((MPICH, Environment(jax="0.6")), (OPENMPI, Environment(jax="0.12")))


def core() -> list[bool]:
    """Rust's tests of the core."""
    return [report("rust", CARGO_TEST, {})]


def rust() -> list[bool]:
    """Rust's tests of the core, and the referee on headers."""
    return core() + [referee(*headers) for headers in HEADERS]


def run_check(check: sanitizers.Check) -> bool:
    """Run tests under a tool, if this machine has it."""
    if check.lack is None:
        return report(check.label, check.command, check.environ)
    print(f"skipped {check.label}: {check.lack}", flush=True)
    return True


def sanitize() -> list[bool]:
    """Rust's tests under the share's tools that watch memory and threads."""
    sample = () if is_whole() else sanitizers.SAMPLE
    checks = (
        sanitizers.address(*sample),
        sanitizers.thread(*sanitizers.SAMPLE),
        sanitizers.loom(),
        sanitizers.miri("--lib"),
    )
    return [run_check(check) for check in part_of(checks, SHARE)]


def referee(mpi: Environment, jax: Environment) -> bool:
    """Compare the core's declarations with the headers of an MPI and of a JAX."""
    if not jax.is_possible():
        print(f"skipped the referee on {jax.name}: this machine lacks what it needs")
        return True
    manifest = ["--manifest-path", str(TESTS / "referee" / "Cargo.toml")]
    python = prepare(jax) / "bin" / "python"
    clang = output_of(
        tools() / "bin" / "python", "-c", "import clang; print(*clang.__path__)"
    )
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
    return report(label, [*CARGO_TEST, *manifest, "--tests"], environ)


def check() -> list[bool]:
    """The checks that fail most often, in under three minutes."""
    quick = under("mpi", "operations", "order", "inputs", "tokens", "arguments", "logging")
    imports = Run(MPICH, 0, under("process", "import"))
    steps = Steps(3)
    steps.begin("the core's tests in Rust")
    results = core()
    steps.begin("operations and their order, on 2 ranks of MPICH")
    results.append(execute(Run(MPICH, 2, quick)))
    steps.begin("imports")
    return [*results, execute(imports)]


def on_hosts() -> list[bool]:
    """Several hosts, made of namespaces, with each MPI, and with Slurm if it is there."""
    if not cluster.is_possible():
        print("skipped hosts: this takes util-linux, iproute2, and root")
        return []
    plain = with_slurm = (sys.executable, str(ROOT / "tools" / "cluster.py"))
    if slurm.is_possible():
        with_slurm = (*plain, "--slurm")
    else:
        print("skipped srun: this takes slurmctld, slurmd, slurm-client, munge, and root")
    return execute_all(runs.on_hosts(plain, with_slurm))


def emulated() -> list[bool]:
    """A sample on aarch64, with the first share of the tests."""
    if not SHARE.startswith("0/"):
        return []
    # In a process of its own, as it sets environment variables.
    command = [sys.executable, str(ROOT / "tools" / "emulated.py"), "--only", "sample"]
    return [subprocess.run(command).returncode == 0]


PARTS = {
    "rust": rust,
    "sanitize": sanitize,
    "own": lambda: execute_all(runs.own()),
    "range": lambda: execute_all(runs.range_()),
    "package": lambda: execute_all(runs.package()),
    "conformance": conformance.run_all,
    "emulated": emulated,
}
OTHERS = {"check": check, "hosts": on_hosts}


def show(run: Run, options: list[str]) -> int:
    """Do a run whose output is shown: rank 0's progress, and the others' failures."""
    command, environ = run.command(*options), run.settings()
    print(f"{', '.join(run.tests)} in {run.label}:\n{shlex.join(command)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, **environ, "TEST_PLACES": folder}
        code = subprocess.run(command, cwd=ROOT, env=environ).returncode
        print(places(folder), end="")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS | OTHERS, default=list(PARTS))
    parser.add_argument("--test", help="a test, a file or a folder, from tests/ on")
    parser.add_argument("--ranks", type=int, help="0: without mpiexec (2, or 0 if it must)")
    parser.add_argument(
        "--options", default="", help="more options for pytest, as one word"
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.test:
        test = arguments.test.removeprefix("tests/")
        ranks = arguments.ranks
        if ranks is None:
            ranks = 0 if test.startswith(("direct", "process", "hangs", "package")) else 2
        arguments.cuda |= test.startswith(("gpu_compiler", "runtime"))
        run = Run(chosen(arguments), ranks, (test,))
        return show(run, shlex.split(arguments.options))
    parts = PARTS | OTHERS
    if arguments.jax != JAX:
        parts["range"] = lambda: execute_all(runs.other_jax(arguments.jax))
    results = [ok for part in arguments.only for ok in parts[part]()]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
