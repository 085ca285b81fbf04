"""Times of programs with each setting of `python -m mpi4jax run`, over those without it.

    python benchmarks/placement.py [--mpi openmpi] [--ranks 2] [--turns 5]

Each program runs with each setting in turn: as the launcher starts it, with XLA's threads
limited to a rank's part of the cores, bound to these cores, with huge pages from the C
library, and by `run`, which limits threads and asks for huge pages. Prints each time over
that of the first.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path += [
    str(HERE.parent / "tools"),
    str(HERE.parent / "mpi4jax" / "_commands"),
    str(HERE),
]

#: Rounds of each program, of which the median counts, and seconds that a round takes.
ROUNDS, ROUND = 7, 0.2

CPUS = os.cpu_count() or 1

Program = Callable[[], Any]


# The programs, on each rank.


def transforms_by_hand(points: int) -> Program:
    import jax
    import jax.numpy as jnp
    from mpi4py import MPI
    from spectral import _step

    from mpi4jax import notoken as mpi

    comm = MPI.COMM_WORLD.Clone()
    step = functools.partial(_step, mpi, comm)
    x = jnp.ones((points // comm.size, points, points), jnp.complex64)
    return functools.partial(jax.jit(step), x)


def transforms_by_plan(points: int) -> Program:
    import jax
    import jax.numpy as jnp
    from mpi4py import MPI

    from mpi4jax import fft, pencil

    grid = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size])
    plan = fft.Plan(pencil.Layout(grid, (points, points, points), axes=[0]))
    x = jnp.ones((points // grid.size, points, points), jnp.complex64)
    return functools.partial(jax.jit(lambda x: plan.backward(plan.forward(x))), x)


def stencil(points: int) -> Program:
    import jax
    import jax.numpy as jnp
    from mpi4py import MPI

    from mpi4jax import halo

    size = MPI.COMM_WORLD.size
    plan = halo.Plan(MPI.COMM_WORLD.Create_cart([size, 1]))

    def step(x: Any) -> Any:
        x = plan.exchange(x)
        inner = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 4
        return x.at[1:-1, 1:-1].set(jnp.tanh(inner))

    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: step(x), x))
    return functools.partial(loop, jnp.ones((points // size + 2, points + 2)))


def products(in_turns: bool) -> Program:
    import jax
    import numpy as np
    from mpi4py import MPI
    from shared_cores import ELEMENTS, ROWS, TURNS, _loop

    from mpi4jax import notoken as mpi

    comm = MPI.COMM_WORLD.Clone()
    loop = functools.partial(
        _loop,
        TURNS["one" if in_turns else "all"],
        lambda: comm.rank,
        functools.partial(mpi.allreduce, op=MPI.SUM, comm=comm),
    )
    matrix, x = np.full((ROWS, ROWS), 1e-3, np.float32), np.ones(ELEMENTS, np.float32)
    return functools.partial(jax.jit(loop), matrix, x)


PROGRAMS: Mapping[str, Program] = {
    "transforms by hand, 64^3": functools.partial(transforms_by_hand, 64),
    "transforms by hand, 128^3": functools.partial(transforms_by_hand, 128),
    "fft.Plan, 128^3": functools.partial(transforms_by_plan, 128),
    "fft.Plan, 256^3": functools.partial(transforms_by_plan, 256),
    "stencil, 256^2": functools.partial(stencil, 256),
    "stencil, 2048^2": functools.partial(stencil, 2048),
    "products": functools.partial(products, False),
    "products, one rank after another": functools.partial(products, True),
}


def work(names: Sequence[str]) -> None:
    """Time programs on this rank, and print the seconds of the slowest one."""
    from mpi4jax._launcher import rank

    if cores := os.environ.get("PLACEMENT_CORES"):
        each, first = int(cores), int(cores) * rank()
        os.sched_setaffinity(0, range(first, first + each))
    import jax
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for name in names:
        program = PROGRAMS[name]()

        def seconds(count: int, program: Program = program) -> float:
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(count):
                jax.block_until_ready(program())
            return comm.allreduce((time.perf_counter() - start) / count, MPI.MAX)

        seconds(1)
        count = max(1, int(ROUND / seconds(2)))
        typical = median(seconds(count) for _ in range(ROUNDS))
        if comm.rank == 0:
            print(f"{name}: {typical}", flush=True)


# The settings.


class Setting(NamedTuple):
    """A way to start a program."""

    environ: Mapping[str, str] = {}
    has_run: bool = False


def settings(ranks: int) -> dict[str, Setting]:
    threads = str(max(1, CPUS // ranks))
    return {
        "as is": Setting(),
        "threads": Setting({"PJRT_NPROC": threads, "OMP_NUM_THREADS": threads}),
        "cores": Setting({"PLACEMENT_CORES": threads} if ranks <= CPUS else {}),
        "huge pages": Setting({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        "run": Setting(has_run=True),
    }


def measure(
    setting: Setting, mpi: str, ranks: int, names: Sequence[str]
) -> dict[str, float]:
    """The seconds of programs that are started with a setting."""
    from environments import Environment, mpi_environ

    path = Environment(mpi=mpi).path
    python = path / "bin" / "python"
    command = [path / "bin" / "mpiexec", "-n", ranks, python, "-P"]
    command += ["-m", "mpi4jax", "run", "-q"] if setting.has_run else []
    if mpi == "openmpi":
        command[1:1] = ["--bind-to", "none"]
    done = subprocess.run(
        [*map(str, [*command, __file__]), "--work", *names],
        env={**os.environ, **mpi_environ(path), **setting.environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return {name: float(s) for name, s in re.findall(r"^(.*): (\S+)$", done.stdout, re.M)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mpi", default="mpich", choices=["mpich", "openmpi"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    ways = settings(options.ranks)
    samples: dict[str, dict[str, list[float]]] = {
        name: {way: [] for way in ways} for name in options.only
    }
    for turn in range(options.turns):
        for way in ways if turn % 2 == 0 else reversed(ways):
            seconds_of = measure(ways[way], options.mpi, options.ranks, options.only)
            for name, seconds in seconds_of.items():
                samples[name][way].append(seconds)
    first, *others = ways
    # By hand: this process has no mpi4jax, whose commands have a table.
    print(f"| {options.ranks} ranks, {options.mpi} | ms {first} | {' | '.join(others)} |")
    print(f"|---|{'---|' * len(ways)}")
    for name, by_way in samples.items():
        base = median(by_way[first])
        ratios = [f"{median(by_way[way]) / base:.2f}" for way in others]
        print(f"| {name} | {base * 1e3:.3g} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
