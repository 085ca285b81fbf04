"""One workload, timed on every rank of an mpiexec, with the mpi4jax that is installed.

    mpiexec -n 2 python benchmarks/measure.py dispatch --output samples.json

`run.py` calls this with each peer in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import sys
import time
from pathlib import Path

# Ranks share the cores, as they do on a cluster.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

# By its path: the original mpi4jax has no such file.
sys.path.append(str(Path(__file__).resolve().parents[1] / "mpi4jax" / "_commands"))
sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from checkpoints import checkpoints
from fields import fields
from gradients import gradients
from migration import migration
from overlap import overlap
from redistribution import redistribution
from sharded import psum, ring, sharded_fft, sparse, stencil
from shared_cores import bound, unbound
from solvers import solvers
from spectral import spectral, spectral_bound
from unstructured import donated_loop, unstructured
from workloads import (
    LEFT,
    QUICK,
    RANK,
    RIGHT,
    SIZE,
    SIZES,
    WORLD,
    Effort,
    Thunk,
    awaited,
    bodies_of_loops,
    dispatch,
    eager,
    import_mpi,
    in_turn,
    latency,
    loop_length,
    loop_over,
    loops,
    mpi4py_body,
    repeated,
    take_turns,
)


def c(effort: Effort) -> dict[str, list[float]]:
    """Operations in a loop, and in one that C has compiled (loops.c)."""
    mpi, comm = import_mpi(), WORLD.Clone()
    library = ctypes.CDLL(os.environ["LOOPS"])
    samples = {}
    for size in SIZES:
        if size > effort.largest:
            continue
        count = size // 4
        for name, (body, start) in bodies_of_loops(mpi, comm, count).items():
            function = library[name]
            buffers = [
                np.ones(count, np.float32).ctypes.data_as(ctypes.c_void_p) for _ in range(2)
            ]
            # An even number, so that both loops end where they began.
            length = loop_length(functools.partial(function, 1, count, *buffers), effort)
            length += length % 2
            cases: dict[str, Thunk] = {
                f"C, {name}, {size}": functools.partial(function, length, count, *buffers),
                f"{name}, {size}": loop_over(body, start, length),
                f"{name}, {size}, unroll=2": loop_over(body, start, length, unroll=2),
            }
            for case, seconds in take_turns(cases, effort, effort.loop_rounds).items():
                samples[case] = [s / length for s in seconds]
    return samples


# What grows with the number of ranks, and with the number of operations in a function.


def growth(effort: Effort) -> dict[str, list[float]]:
    mpi = import_mpi()
    comm = WORLD.Clone()
    cases: dict[str, Thunk] = {}
    lengths = {}
    for size, length in ((8, 100), (1 << 16, 20)):
        x = jnp.ones(size // 4, jnp.float32)
        buffer = np.ones(size // 4, np.float32)

        def total(x):
            return mpi.allreduce(x, op=MPI.MAX, comm=comm)

        call = jax.jit(total)
        loop = jax.jit(
            lambda x, n=length: jax.lax.fori_loop(0, n, lambda _, y: total(y), x)
        )

        def by_hand(buffer=buffer):
            comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.MAX)

        cases[f"jit, {size}"] = lambda f=call, x=x: f(x).block_until_ready()
        cases[f"loop, {size}"] = lambda f=loop, x=x: f(x).block_until_ready()
        cases[f"mpi4py, {size}"] = repeated(by_hand, length)
        lengths[f"loop, {size}"] = lengths[f"mpi4py, {size}"] = length
    samples = take_turns(cases, effort)
    return {n: [s / lengths.get(n, 1) for s in v] for n, v in samples.items()}


def programs(effort: Effort) -> dict[str, list[float]]:
    """Functions of 1 to 1000 operations: to trace and lower, to compile, to call."""
    mpi = import_mpi()
    comm = WORLD.Clone()
    x = jnp.ones(2, jnp.float32)
    samples: dict[str, list[float]] = {}
    for count in (1, 10, 100) if effort.rounds < 5 else (1, 10, 100, 1000):
        for _ in range(1 if count == 1000 else 3):

            def function(x, count=count):
                for _ in range(count):
                    x = mpi.allreduce(x, op=MPI.MAX, comm=comm)
                return x

            start = time.perf_counter()
            lowered = jax.jit(function).lower(x)
            middle = time.perf_counter()
            lowered.compile()
            end = time.perf_counter()
            samples.setdefault(f"trace and lower, {count}", []).append(middle - start)
            samples.setdefault(f"compile, {count}", []).append(end - middle)
        jitted = jax.jit(function)
        call = {f"call, {count}": lambda f=jitted: f(x).block_until_ready()}
        samples.update(take_turns(call, effort))
    return samples


def checks(effort: Effort) -> dict[str, list[float]]:
    """Calls without a comparison before, and compared with the calls of the other ranks."""
    from mpi4jax import _core

    mpi = import_mpi()
    comm = WORLD.Clone()

    def checked(call: Thunk) -> Thunk:
        def with_check() -> None:
            _core.set_check(True)
            call()
            _core.set_check(False)

        return with_check

    operations = {
        "allreduce": lambda x: mpi.allreduce(x, op=MPI.MAX, comm=comm),
        "sendrecv": lambda x: mpi.sendrecv(x, x, LEFT, RIGHT, comm=comm),
    }
    samples: dict[str, list[float]] = {}
    for name, operation in operations.items():
        for size, length in ((8, 1000), (1 << 16, 100)):
            length = min(length, effort.loop)
            x = jnp.ones(size // 4, jnp.float32)
            loop = jax.jit(
                lambda x, f=operation, n=length: jax.lax.fori_loop(
                    0, n, lambda _, y: f(y), x
                )
            )
            call = awaited(loop, x)
            cases = {f"{name}, {size}": call, f"checked {name}, {size}": checked(call)}
            for case, seconds in take_turns(cases, effort).items():
                samples[case] = [s / length for s in seconds]
    return samples


def trees(effort: Effort) -> dict[str, list[float]]:
    """An allreduce of all leaves of a tree: by one call for the tree, or one for each.

    By a jitted function, which JAX hands every leaf to and takes every result from, and in
    a loop within one, per tree.
    """
    mpi = import_mpi()
    comm = WORLD.Clone()
    samples: dict[str, list[float]] = {}

    def each(leaves):
        return [mpi.allreduce(x, op=MPI.MAX, comm=comm) for x in leaves]

    def whole(leaves):
        return mpi.tree.allreduce(leaves, op=MPI.MAX, comm=comm)

    ways = {"each": each}
    if hasattr(mpi, "tree"):  # the original has none
        ways["tree"] = whole
    for count, size, length in ((200, 1 << 10, 100), (10, 1 << 22, 3)):
        leaves = [jnp.full(size // 4, n, jnp.float32) for n in range(count)]
        label = f"{count} of {size}"
        length = min(length, effort.loop)
        cases: dict[str, Thunk] = {}

        def call(function, leaves=leaves):
            return lambda: jax.block_until_ready(function(leaves))

        for name, way in ways.items():

            def loop(leaves, way=way, length=length):
                return jax.lax.fori_loop(0, length, lambda _, x: way(x), leaves)

            cases[f"{label}, jit, {name}"] = call(jax.jit(way))
            cases[f"{label}, loop, {name}"] = call(jax.jit(loop))
        cases[f"{label}, jit, nothing"] = call(jax.jit(lambda x: [y + 1 for y in x]))
        for case, seconds in take_turns(cases, effort).items():
            steps = length if ", loop, " in case else 1
            samples[case] = [s / steps for s in seconds]
    return samples


def halos(effort: Effort) -> dict[str, list[float]]:
    """The ghost cells of fields of 256 x 256, in a loop, per step.

    By a plan, by a sendrecv for each field and side, and by mpi4py with persistent requests
    and buffers that NumPy packs. The grid of processes is periodic.
    """
    mpi = import_mpi()
    comm = WORLD.Create_cart(MPI.Compute_dims(SIZE, 2), (True, True))
    neighbors = [comm.Shift(axis, 1) for axis in range(2)]
    jax.config.update("jax_enable_x64", True)
    samples: dict[str, list[float]] = {}

    def each(fields):
        return [with_ghosts(mpi, comm, with_ghosts(mpi, comm, x, 0), 1) for x in fields]

    ways = {"each": each}
    if hasattr(mpi, "exchange"):  # the original has none
        from mpi4jax.halo import Plan

        ways["plan"] = Plan(comm).exchange
        ways["plan, corners=False"] = Plan(comm, corners=False).exchange
        ways["accumulate"] = Plan(comm).accumulate
    length = min(100, effort.loop)
    for count in (1, 5, 20):
        state = {name: [jnp.ones((258, 258))] * count for name in ways}
        cases: dict[str, Thunk] = {}
        for name, way in ways.items():

            def loop(fields, way=way):
                return jax.lax.fori_loop(0, length, lambda _, x: way(x), fields)

            compiled = jax.jit(loop)

            def call(state=state, name=name, compiled=compiled):
                state[name] = jax.block_until_ready(compiled(state[name]))

            cases[f"{count}, {name}"] = call
        cases[f"{count}, mpi4py"] = _persistent(comm, neighbors, count, length)
        for case, seconds in take_turns(cases, effort).items():
            samples[case] = [s / length for s in seconds]
    return samples


def with_ghosts(mpi, comm: MPI.Cartcomm, x, axis: int):
    """A field with its ghost cells along an axis, by a sendrecv for each side."""
    before, behind = comm.Shift(axis, 1)
    at = (slice(None),) * axis
    for take, put, source, dest in ((-2, 0, before, behind), (1, -1, behind, before)):
        ghosts = mpi.sendrecv(x[(*at, take)], x[(*at, put)], source, dest, comm=comm)
        x = x.at[(*at, put)].set(ghosts)
    return x


def axes(effort: Effort) -> dict[str, list[float]]:
    """The ghost cells of five fields along one axis, in a loop, per step.

    Along the second axis, each cell is on a row of its own.
    """
    mpi = import_mpi()
    jax.config.update("jax_enable_x64", True)
    samples: dict[str, list[float]] = {}
    for axis in range(2):
        dims = [SIZE if n == axis else 1 for n in range(2)]
        comm = WORLD.Create_cart(dims, [n == axis for n in range(2)])

        def each(fields, comm=comm, axis=axis):
            return [with_ghosts(mpi, comm, x, axis) for x in fields]

        ways = {"each": each}
        if hasattr(mpi, "exchange"):  # the original has none
            from mpi4jax.halo import Plan

            ways["plan"] = Plan(comm).exchange
        for width in (32, 256, 1024):
            length = min(100, effort.loop)
            cases = {
                f"{axis}, {width}, {name}": donated_loop(
                    way, [jnp.ones((width + 2, width + 2)) for _ in range(5)], length
                )
                for name, way in ways.items()
            }
            for case, seconds in take_turns(cases, effort).items():
                samples[case] = [s / length for s in seconds]
    return samples


def pages(effort: Effort) -> dict[str, list[float]]:
    """Arrays of 16 MiB in short and in long loops, beside mpi4py in NumPy's memory."""
    mpi, comm = import_mpi(), WORLD.Clone()
    samples: dict[str, list[float]] = {}
    count = effort.largest // 4
    for name, (body, start) in bodies_of_loops(mpi, comm, count).items():
        if name not in ("allreduce", "bcast", "sendrecv"):
            continue
        by_hand = mpi4py_body(comm, name, np.ones(count, np.float32))
        for length in (6, 60):
            cases = {
                f"{name}, {length}": donated_loop(body, jnp.copy(start), length),
                f"mpi4py, {name}, {length}": repeated(by_hand, length),
            }
            for case, seconds in take_turns(cases, effort).items():
                samples[case] = [s / length for s in seconds]
    return samples


def resident(effort: Effort) -> dict[str, list[float]]:
    """Additional memory of a process during a loop over large arrays, in MiB."""
    mpi, comm = import_mpi(), WORLD.Clone()

    def step(arrays):
        return [mpi.allreduce(x + 1, op=MPI.MAX, comm=comm) for x in arrays]

    samples = {}
    for size, count in ((5, 12), (16, 4), (60, 1)):
        before = _resident_mebibytes()
        # No size of arrays is a multiple of the size of huge pages.
        arrays = [jnp.ones((size << 18) + 1000, jnp.float32) for _ in range(count)]
        loop = donated_loop(step, arrays, 6)
        del arrays
        for _ in range(3):
            loop()
        growth = WORLD.allreduce(_resident_mebibytes() - before) / SIZE
        samples[f"{count} of {size} MiB"] = [growth]
        del loop
    return samples


def _resident_mebibytes() -> float:
    """The memory of this process, with its share of memory that several processes map."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def neighbors(effort: Effort) -> dict[str, list[float]]:
    """Blocks for the neighbors on a graph, in a loop, per call."""
    mpi = import_mpi()
    samples = {}
    for count in (2, 8, 32):
        # The two processes beside this one, again and again.
        others = [LEFT, RIGHT] * (count // 2)
        comm = WORLD.Create_dist_graph_adjacent(others, others)
        for size in (8, 1 << 16):
            blocks = np.ones((count, size // 4), np.float32)
            front, back = blocks.copy(), blocks.copy()
            # The buffers are swapped between two rounds: nothing has to be copied.
            pair = in_turn(
                functools.partial(comm.Neighbor_alltoall, front, back),
                functools.partial(comm.Neighbor_alltoall, back, front),
            )
            length = 2 * loop_length(pair, effort)

            def body(x, comm=comm):
                return mpi.neighbor_alltoall(x, comm=comm)

            start = jnp.asarray(blocks)
            cases: dict[str, Thunk] = {
                f"{count}, {size}": loop_over(body, start, length),
                f"{count}, {size}, unroll=2": loop_over(body, start, length, unroll=2),
                f"mpi4py, {count}, {size}": repeated(pair, length // 2),
            }
            for case, seconds in take_turns(cases, effort, effort.loop_rounds).items():
                samples[case] = [s / length for s in seconds]
    return samples


def _persistent(comm: MPI.Cartcomm, neighbors, count: int, length: int) -> Thunk:
    """A halo exchange with persistent requests and one message for each neighbor."""
    fields = [np.ones((258, 258)) for _ in range(count)]
    sent, received = np.ones((2, 2, 2, count, 258))
    requests = [
        [
            comm.Send_init(sent[axis, 0], before, 0),
            comm.Send_init(sent[axis, 1], behind, 1),
            comm.Recv_init(received[axis, 0], before, 1),
            comm.Recv_init(received[axis, 1], behind, 0),
        ]
        for axis, (before, behind) in enumerate(neighbors)
    ]

    def step() -> None:
        for axis in range(2):
            at = (slice(None),) * axis
            for n, x in enumerate(fields):
                sent[axis, 0, n], sent[axis, 1, n] = x[(*at, 1)], x[(*at, -2)]
            MPI.Prequest.Startall(requests[axis])
            MPI.Request.Waitall(requests[axis])
            for n, x in enumerate(fields):
                x[(*at, 0)], x[(*at, -1)] = received[axis, 0, n], received[axis, 1, n]

    def call() -> None:
        for _ in range(length):
            step()

    return call


WORKLOADS = {
    f.__name__: f
    for f in (
        *(dispatch, eager, loops, c, latency, psum, ring, sparse, stencil),
        *(growth, programs, trees, checks, neighbors, halos, axes, pages, resident),
        *(overlap, bound, unbound, spectral, spectral_bound),
        *(unstructured, migration, solvers, redistribution),
        *(sharded_fft, checkpoints, fields, gradients),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    samples = WORKLOADS[args.workload](QUICK if args.quick else Effort())
    if RANK == 0:
        args.output.write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
