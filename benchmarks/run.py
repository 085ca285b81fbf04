"""Measures this mpi4jax against the original one, mpi4py alone, and JAX's collectives.

    python benchmarks/run.py [--quick] [--only WORKLOAD ...] [--output DIRECTORY]

makes an environment for each (as `tools/environments.py` does), lets them take turns at the
same workloads, and writes the samples (`results.json`), a table (`table.md`) and plots.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tools"))

import conformance  # noqa: E402
import environments  # noqa: E402
from environments import Environment, mpi_environ  # noqa: E402

OURS, UPSTREAM, GLOO = "ours", "upstream", "gloo"
OPENMPI, UPSTREAM_OPENMPI = "ours, Open MPI", "upstream, Open MPI"
SPINNING, SPINNING_OPENMPI = "ours, spinning", "ours, spinning, Open MPI"
SMALL_PAGES, HUGE_PAGES = "ours, small pages", "ours, huge pages by glibc"
ENVIRONMENTS = {
    OURS: Environment(),
    GLOO: Environment(),
    SMALL_PAGES: Environment(),
    HUGE_PAGES: Environment(),
    SPINNING: Environment(),
    OPENMPI: Environment(mpi="openmpi"),
    SPINNING_OPENMPI: Environment(mpi="openmpi"),
    UPSTREAM: environments.UPSTREAM,
    UPSTREAM_OPENMPI: environments.UPSTREAM._replace(mpi="openmpi"),
}
#: The environment variables of those who differ by these.
SETTINGS = {
    GLOO: {"COLLECTIVES": "gloo"},
    SPINNING: {"MPI4JAX_WAIT": "spin"},
    SPINNING_OPENMPI: {"MPI4JAX_WAIT": "spin"},
    SMALL_PAGES: {"MPI4JAX_HUGE_PAGES": "off"},
    HUGE_PAGES: {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
BOTH = (OURS, UPSTREAM)
BOTH_ON_EACH_MPI = (*BOTH, OPENMPI, UPSTREAM_OPENMPI)
WAITS = (*BOTH_ON_EACH_MPI, SPINNING, SPINNING_OPENMPI)

#: The measurements: by whom, on how many ranks, and how often each has its turn.
PLAN = [
    ("dispatch", BOTH, (2,), 3),
    ("eager", BOTH, (2,), 1),
    ("latency", BOTH, (2,), 2),
    ("psum", (OURS, GLOO), (2, 4), 2),
    ("ring", (OURS, GLOO), (2, 4), 2),
    ("sparse", (OURS, GLOO), (2, 4), 2),
    ("stencil", (OURS, GLOO), (2, 4), 2),
    ("migration", (OURS, GLOO), (2, 4), 2),
    ("programs", BOTH, (1,), 1),
    ("growth", BOTH, (1, 2, 4, 8), 1),
    ("loops", BOTH, (2,), 1),
    ("c", (OURS,), (2,), 1),
    ("checks", (OURS,), (2,), 1),
    ("trees", BOTH_ON_EACH_MPI, (2,), 2),
    ("neighbors", (OURS, OPENMPI), (2, 4), 2),
    ("halos", BOTH_ON_EACH_MPI, (2, 4), 2),
    ("axes", BOTH, (2,), 2),
    ("unstructured", BOTH, (2, 4, 8, 13), 2),
    ("solvers", (OURS, OPENMPI), (2, 4), 2),
    ("sharded_fft", (OURS, GLOO), (2, 4), 1),
    ("redistribution", (*BOTH, OPENMPI), (2, 4, 1, 8), 1),
    ("checkpoints", (OURS,), (2, 4, 1), 1),
    ("fields", (OURS,), (2, 4, 1), 2),
    ("gradients", (OURS,), (2,), 1),
    ("pages", (OURS, SMALL_PAGES, HUGE_PAGES), (2,), 5),
    ("resident", (OURS, SMALL_PAGES, HUGE_PAGES), (8,), 1),
    ("overlap", (OURS, OPENMPI), (2,), 1),
    ("unbound", (*BOTH_ON_EACH_MPI, GLOO), (2, 4, 8), 2),
    ("bound", (*BOTH_ON_EACH_MPI, GLOO), (2, 4), 2),
    ("spectral", WAITS, (2, 4), 5),
    ("spectral_bound", WAITS, (2,), 3),
]

Samples = dict[str, list[float]]


def python(peer: str) -> Path:
    return ENVIRONMENTS[peer].path / "bin" / "python"


def mpirun(peer: str, ranks: int, *arguments: object, cwd: Path = ROOT, **environ) -> str:
    """Run a Python program on a number of ranks, and give back its output."""
    environment = ENVIRONMENTS[peer].path
    command = [environment / "bin" / "mpiexec", "-n", ranks, python(peer), "-P", *arguments]
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **mpi_environ(environment), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def extend(samples: Samples, more: Samples) -> None:
    for case, seconds in more.items():
        samples.setdefault(case, []).extend(seconds)


def workloads(quick: bool, only: Sequence[str]) -> Iterator[tuple[str, dict[str, Samples]]]:
    """The samples of the plan, by workload (and ranks) and peer."""
    for workload, peers, ranks, turns in PLAN:
        if only and workload not in only:
            continue
        for size in ranks[:1] if quick else ranks:
            name = workload if len(ranks) == 1 else f"{workload}, {size}"
            taken: dict[str, Samples] = {peer: {} for peer in peers}
            for turn in range(1 if quick else turns):
                for peer in peers if turn % 2 == 0 else reversed(peers):
                    print(f"{name}: {peer}", flush=True)
                    extend(taken[peer], measure(workload, peer, size, quick))
            yield name, taken


def measure(workload: str, peer: str, ranks: int, quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "samples.json"
        options = ["--quick"] if quick else []
        script = HERE / "measure.py"
        environ = dict(SETTINGS.get(peer, {}))
        if workload == "checkpoints" and ranks == 1:
            environ["PJRT_NPROC"] = "1"  # so that the thread that writes has a core
        if workload == "c":
            if shutil.which("cc") is None:
                print("skipped: no C compiler")
                return {}
            environ["LOOPS"] = compiled(HERE / "loops.c", peer, Path(scratch))
        mpirun(peer, ranks, script, workload, "--output", output, *options, **environ)
        return json.loads(output.read_text())


def compiled(source: Path, peer: str, folder: Path) -> str:
    """A library of functions in C, for the MPI of an environment."""
    library = folder / f"{source.stem}.so"
    mpicc = ENVIRONMENTS[peer].path / "bin" / "mpicc"
    environments.call(mpicc, "-O2", "-shared", "-fPIC", "-o", library, source)
    return str(library)


def imports(quick: bool) -> dict[str, Samples]:
    """The seconds that `import mpi4jax` takes beyond the imports of JAX and mpi4py."""
    code = (
        "import time, jax, mpi4py.MPI; start = time.perf_counter(); import mpi4jax; "
        "print(time.perf_counter() - start)"
    )
    taken: dict[str, Samples] = {peer: {"import": []} for peer in BOTH}
    for _ in range(2 if quick else 11):
        for peer in BOTH:
            output = mpirun(peer, 1, "-c", code)
            taken[peer]["import"].append(float(output.split()[-1]))
    return taken


def handlers() -> dict[str, float]:
    """The nanoseconds that a handler takes apart from MPI."""
    command = ["cargo", "bench", "--quiet", "--locked", "--bench", "handler"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.rsplit(maxsplit=1) for line in done.stdout.splitlines()]
    return {name: float(nanoseconds) for name, nanoseconds in lines}


def applications(quick: bool) -> Iterator[tuple[str, dict[str, Samples]]]:
    """The seconds that two shallow-water solvers take."""
    # Our own one has its ghost cells from a plan, which the original does not have.
    own = (ROOT / "examples" / "shallow_water.py", "--benchmark")
    todo = {"own solver": ((OURS,), (*own, "--days", "0.1" if quick else "5"))}
    if not quick:
        archive = conformance.fetch("0.9.1.post2", conformance.ARCHIVES)
        program = archive / "examples" / "shallow_water.py"
        todo["solver of 0.9.1"] = (BOTH, (program, "--benchmark"))
    for name, (peers, command) in todo.items():
        for ranks in (1, 2):
            taken: dict[str, Samples] = {peer: {"seconds": []} for peer in peers}
            for turn in range(1 if quick else 3):
                for peer in peers if turn % 2 == 0 else reversed(peers):
                    print(f"{name}, {ranks}: {peer}", flush=True)
                    output = mpirun(peer, ranks, *command, MPI4JAX_API="notoken")
                    pattern = r"(?:Solution took|time of the loop:) ([\d.]+) ?s"
                    (seconds,) = re.findall(pattern, output)
                    taken[peer]["seconds"].append(float(seconds))
            yield f"{name}, {ranks}", taken


def machine() -> dict[str, object]:
    """The machine and the versions of the measurements."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = re.findall(r"model name\s*: (.*)", text)
    code = (
        "import jax, jaxlib; from mpi4py import MPI; "
        "print(jax.__version__, MPI.Get_library_version().split()[2])"
    )
    versions = mpirun(OURS, 1, "-c", code).split()
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.release(),
        "python": platform.python_version(),
        "jax": versions[0],
        "mpich": versions[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=[workload for workload, *_ in PLAN],
        help="measure these workloads again, and keep all other results",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench")
    args = parser.parse_args()
    for environment in ENVIRONMENTS.values():
        environments.prepare(environment)
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "results.json"
    if args.only:
        results = json.loads(path.read_text())
        todo = workloads(args.quick, args.only)
    else:
        results = {
            "machine": machine(),
            "handlers": handlers(),
            "import": imports(args.quick),
        }
        todo = chain(workloads(args.quick, ()), applications(args.quick))
    for name, taken in todo:
        results[name] = taken
        path.write_text(json.dumps(results, indent=1))  # what is done is not lost
    subprocess.run([python(OURS), "-P", HERE / "report.py", path], check=True)


if __name__ == "__main__":
    main()
