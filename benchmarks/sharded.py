"""JAX's own collectives over processes, beside operations that do the same.

All cases of a workload take turns in the same processes. Their collectives use MPI or gloo,
of which a process can have one: `run.py` alternates between such processes.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI
from workloads import (
    LATENCY_SIZES,
    LEFT,
    RANK,
    RIGHT,
    SIZE,
    SIZES,
    WORLD,
    Effort,
    Samples,
    Thunk,
    awaited,
    import_mpi,
    take_turns,
)

#: A function of a process's block and a number of steps, which gives the block after these.
Loop = Callable[[Any, int], Any]


def initialize() -> NamedSharding:
    """Connect JAX's processes. Return the sharding of arrays with a block on each."""
    if os.environ.get("COLLECTIVES") != "gloo":
        from mpi4jax import distributed

        distributed.initialize()
    else:
        port = 20000 + WORLD.bcast(os.getpid(), 0) % 20000
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", SIZE, RANK)
    return NamedSharding(Mesh(jax.devices(), "ranks"), P("ranks"))


def over_ranks(function: Callable[[Any], Any], sharding: NamedSharding) -> Any:
    """A jitted function of an array of which each process has a block."""
    mesh, spec = sharding.mesh, sharding.spec
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


def psum(effort: Effort) -> Samples:
    """A sum as a program of its own and in a loop, beside a loop with `allreduce`."""
    sharding = initialize()

    def summed(x):
        return jax.lax.psum(x, "ranks")

    samples = {}
    cases: dict[str, Thunk] = {}
    for size in sorted({*LATENCY_SIZES, *SIZES}):
        if size > effort.largest:
            continue
        local = np.ones(size // 4, np.float32)
        x = jax.make_array_from_process_local_data(sharding, local)
        program = over_ranks(lambda x: summed(x) + 0 * x, sharding)
        cases[f"jit, {size}"] = awaited(program, x)
    samples.update(take_turns(cases, effort))
    mpi, comm = import_mpi(), WORLD.Clone()
    for size in SIZES:
        if size > effort.largest:
            continue
        local = np.ones(size // 4, np.float32)
        x = jax.make_array_from_process_local_data(sharding, local)
        length = loop_length_of(size, effort)

        def loop(x, sum_over_ranks, n=length):
            # A sum is the same on all ranks, but the state of a loop may not become so.
            return jax.lax.fori_loop(0, n, lambda _, y: sum_over_ranks(y) / SIZE + 0 * y, x)

        program = over_ranks(functools.partial(loop, sum_over_ranks=summed), sharding)
        allreduce = functools.partial(mpi.allreduce, op=MPI.SUM, comm=comm)
        beside = jax.jit(functools.partial(loop, sum_over_ranks=allreduce))
        cases = {
            f"psum, {size}": awaited(program, x),
            f"allreduce, {size}": awaited(beside, local),
        }
        for name, seconds in take_turns(cases, effort).items():
            samples[name] = [s / length for s in seconds]
    jax.distributed.shutdown()
    return samples


def loop_length_of(size: int, effort: Effort) -> int:
    return max(3, effort.loop // (1 + size // (1 << 14)))


def time_loops(
    label: str,
    block: np.ndarray,
    length: int,
    effort: Effort,
    sharding: NamedSharding,
    inside: Mapping[str, Loop],
    outside: Loop,
) -> Samples:
    """Seconds of a step of loops in a `shard_map`, and of a loop outside of it.

    `block` is the block of this process. All loops have to return equal results.
    """
    x = jax.make_array_from_process_local_data(sharding, block)
    cases = {
        f"{name}, {label}": awaited(
            over_ranks(functools.partial(loop, length=length), sharding), x
        )
        for name, loop in inside.items()
    }
    beside = jax.jit(functools.partial(outside, length=length))
    cases[f"outside, {label}"] = awaited(beside, block)
    expected = np.asarray(beside(block))
    for name, case in cases.items():
        result = case().addressable_data(0)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6, err_msg=name)
    taken = take_turns(cases, effort)
    return {name: [s / length for s in seconds] for name, seconds in taken.items()}


def repeat(step: Callable[[Any], Any]) -> Loop:
    return lambda x, length: jax.lax.fori_loop(0, length, lambda _, y: step(y), x)


def ring(effort: Effort) -> Samples:
    """A message to the next rank, by `sendrecv` and `ppermute`."""
    sharding = initialize()
    mpi, comm = import_mpi(), WORLD.Clone()

    def computed(x):
        rank = jax.lax.axis_index("ranks")
        return mpi.sendrecv(x, x, (rank - 1) % SIZE, (rank + 1) % SIZE)

    def permuted(x):
        pairs = [(rank, (rank + 1) % SIZE) for rank in range(SIZE)]
        return jax.lax.ppermute(x, "ranks", pairs)

    def outside(x):
        return mpi.sendrecv(x, x, LEFT, RIGHT, comm=comm)

    samples: Samples = {}
    for size in (8, 1 << 20):
        samples |= time_loops(
            str(size),
            np.full(size // 4, RANK, np.float32),
            loop_length_of(size, effort) | 1,  # odd: ends on another rank than it began
            effort,
            sharding,
            {"messages": repeat(computed), "ppermute": repeat(permuted)},
            repeat(outside),
        )
    jax.distributed.shutdown()
    return samples


class Round:
    """Messages of which each rank sends one at most, and receives one at most."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.dest = np.full(SIZE, MPI.PROC_NULL, np.int32)
        self.source = np.full(SIZE, MPI.PROC_NULL, np.int32)
        #: The elements of the message that each rank receives.
        self.counts = np.zeros(SIZE, np.int32)

    def takes(self, source: int, dest: int) -> bool:
        return self.dest[source] == self.source[dest] == MPI.PROC_NULL

    def add(self, source: int, dest: int, count: int) -> None:
        self.pairs.append((source, dest))
        self.dest[source], self.source[dest] = dest, source
        self.counts[dest] = count

    @property
    def largest(self) -> int:
        return int(self.counts.max())


def irregular_rounds() -> list[Round]:
    """Messages of 1 to 64 KiB, from each rank to two or three others, or to all if fewer.

    The largest messages come first, so that messages of a round have similar sizes.
    """
    random = np.random.default_rng(0)
    messages = []
    for rank in range(SIZE):
        others = [other for other in range(SIZE) if other != rank]
        degree = min(len(others), 2 + rank % 2)
        for dest in random.choice(others, degree, replace=False):
            messages.append((int(2 ** random.uniform(8, 14)), rank, int(dest)))
    rounds: list[Round] = []
    for count, source, dest in sorted(messages, reverse=True):
        fitting = next((r for r in rounds if r.takes(source, dest)), None)
        if fitting is None:
            rounds.append(fitting := Round())
        fitting.add(source, dest, count)
    return rounds


def sparse(effort: Effort) -> Samples:
    """Messages of different sizes between some pairs of ranks, in rounds.

    In a program that is the same on all ranks, the messages of a round have the size of the
    largest one. Outside, each has its own.
    """
    sharding = initialize()
    mpi, comm = import_mpi(), WORLD.Clone()
    rounds = irregular_rounds()

    def step(x, rank, receive):
        """Exchange the messages. A received message replaces the own block of a rank."""
        received = receive([x[: r.largest] for r in rounds])
        for r, y in zip(rounds, received, strict=True):
            is_received = jnp.arange(y.size) < jnp.asarray(r.counts)[rank]
            x = x.at[: y.size].set(jnp.where(is_received, y, x[: y.size]))
        return x

    def computed(x, at_once):
        rank = jax.lax.axis_index("ranks")
        sources = [jnp.asarray(r.source)[rank] for r in rounds]
        dests = [jnp.asarray(r.dest)[rank] for r in rounds]

        def receive(parts):
            if at_once:
                return mpi.exchange(parts, parts, sources, dests)
            return [*map(mpi.sendrecv, parts, parts, sources, dests)]

        return step(x, rank, receive)

    def permuted(x):
        def receive(parts):
            return [
                jax.lax.ppermute(part, "ranks", r.pairs)
                for part, r in zip(parts, rounds, strict=True)
            ]

        return step(x, jax.lax.axis_index("ranks"), receive)

    def outside(x):
        received = []
        for r in rounds:
            source, dest = int(r.source[RANK]), int(r.dest[RANK])
            sent = 0 if dest == MPI.PROC_NULL else r.counts[dest]
            own = x[: r.counts[RANK]]
            received.append(mpi.sendrecv(x[:sent], own, source, dest, comm=comm))
        for y in received:
            x = x.at[: y.size].set(y)
        return x

    count = max(r.largest for r in rounds)
    block = np.random.default_rng(RANK).normal(size=count).astype(np.float32)
    samples = time_loops(
        "sparse",
        block,
        loop_length_of(block.nbytes, effort),
        effort,
        sharding,
        {
            "messages": repeat(functools.partial(computed, at_once=False)),
            "exchange": repeat(functools.partial(computed, at_once=True)),
            "ppermute": repeat(permuted),
        },
        repeat(outside),
    )
    jax.distributed.shutdown()
    return samples


def stencil(effort: Effort) -> Samples:
    """The heat equation on a grid of ranks: ghost cells by a plan and by `ppermute`."""
    from mpi4jax.halo import Plan

    dims = MPI.Compute_dims(SIZE, 2)
    devices = initialize().mesh.devices.reshape(dims)
    sharding = NamedSharding(Mesh(devices, ("i", "j")), P("i", "j"))

    def by_plan(plan: Plan) -> Loop:
        def step(t):
            t = plan.exchange(t)
            inner = t[1:-1, 1:-1]
            sums = (t[:-2, 1:-1] + t[2:, 1:-1]) + (t[1:-1, :-2] + t[1:-1, 2:])
            return t.at[1:-1, 1:-1].set(inner + 0.1 * (sums - 4 * inner))

        return lambda t, length: repeat(step)(jnp.pad(t, 1), length)[1:-1, 1:-1]

    def permuted(t):
        rows = with_permuted_ghosts(t, 0, "i", dims[0])
        columns = with_permuted_ghosts(t, 1, "j", dims[1])
        sums = (rows[:-2] + rows[2:]) + (columns[:, :-2] + columns[:, 2:])
        return t + 0.1 * (sums - 4 * t)

    comm = WORLD.Create_cart(dims, (False, False))
    samples: Samples = {}
    for width in (64, 512):
        samples |= time_loops(
            f"{width} x {width}",
            np.random.default_rng(RANK).uniform(size=(width, width)).astype(np.float32),
            min(100, effort.loop),
            effort,
            sharding,
            {
                "messages": by_plan(Plan(sharding.mesh, corners=False)),
                "ppermute": repeat(permuted),
            },
            by_plan(Plan(comm, corners=False)),
        )
    jax.distributed.shutdown()
    return samples


def with_permuted_ghosts(x: Any, axis: int, name: str, count: int) -> Any:
    """A block with layers of its neighbors along an axis, and zeros at the ends."""
    forth = [(n, n + 1) for n in range(count - 1)]
    back = [(n + 1, n) for n in range(count - 1)]
    first, *_, last = jnp.split(x, [1, x.shape[axis] - 1], axis)
    before = jax.lax.ppermute(last, name, forth)
    behind = jax.lax.ppermute(first, name, back)
    return jnp.concatenate([before, x, behind], axis)


def sharded_fft(effort: Effort) -> Samples:
    """The Fourier transform of a sharded array, beside JAX's own, and the MiB they need."""
    from mpi4jax import fft

    sharding = initialize()
    samples: Samples = {}
    for points in (32, 64, 128, 256):
        if points**3 // SIZE > 8 * effort.largest:
            continue
        block = np.random.default_rng(RANK).normal(size=(points // SIZE, points, points, 2))
        block = block.astype(np.float32).view(np.complex64)[..., 0]
        x = jax.make_array_from_process_local_data(sharding, block)
        programs = {
            "ours": fft.fftn,
            "jnp.fft": jax.jit(jnp.fft.fftn, out_shardings=sharding),
        }
        expected, result = (f(x).addressable_data(0) for f in programs.values())
        scale = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=scale)
        del expected, result
        cases = {f"{points}, {name}": awaited(f, x) for name, f in programs.items()}
        samples |= take_turns(cases, effort, effort.loop_rounds if points > 128 else 0)
        samples |= memory_of(cases)
    jax.distributed.shutdown()
    return samples


def memory_of(cases: Mapping[str, Thunk]) -> Samples:
    """The MiB that a process needs in each call: the most of all processes."""
    return {
        f"memory, {name}": [WORLD.allreduce(mebibytes_in_call(call), op=MPI.MAX)]
        for name, call in cases.items()
    }


def mebibytes_in_call(call: Thunk) -> float:
    """Peak of the memory that this process has during a call, beyond its memory before."""
    time.sleep(0.1)  # XLA frees the memory of a call a moment after its result is there
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = status_kibibytes("VmRSS")
    call()
    return (status_kibibytes("VmHWM") - before) / 1024


def status_kibibytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
