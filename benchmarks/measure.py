"""One workload, timed on every rank of an mpiexec, with the mpi4jax that is installed.

    mpiexec -n 2 python benchmarks/measure.py dispatch --output samples.json

All cases of a workload take turns, round after round, so that what disturbs the machine
disturbs them alike. A sample is the time of one call in seconds, averaged over a burst of
calls, on the rank where it took longest. `run.py` calls this with each peer in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

# Ranks share the cores, as they do on a cluster.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE

#: The sizes of arrays in bytes.
SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
LATENCY_SIZES = tuple(8 << n for n in range(0, 24, 2))

Case = Callable[[], object]


class Effort:
    """How long to measure."""

    def __init__(self, quick: bool) -> None:
        self.rounds = 3 if quick else 15
        self.burst = 0.002 if quick else 0.03  # seconds of one sample
        self.loop = 20 if quick else 1000  # operations in a loop, fewer if they are slow
        self.loop_time = 0.02 if quick else 1.0
        self.loop_rounds = 3 if quick else 5
        self.largest = 1 << 20 if quick else 1 << 24


def take_turns(
    cases: dict[str, Case], effort: Effort, rounds: int = 0
) -> dict[str, list[float]]:
    """Time all cases, in calls per sample that fill a burst."""
    calls = {name: _calls_in(case, effort.burst) for name, case in cases.items()}
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds or effort.rounds):
        for name, case in cases.items():
            samples[name].append(_time(case, calls[name]))
    return samples


def _time(case: Case, calls: int) -> float:
    WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        case()
    return WORLD.allreduce(time.perf_counter() - start, op=MPI.MAX) / calls


def _calls_in(case: Case, seconds: float) -> int:
    case()  # compiles
    calls = 1
    while (elapsed := _time(case, calls) * calls) < seconds / 2:
        calls = min(int(1 + calls * min(10, seconds / elapsed)), 100_000)
    return calls


def import_mpi():
    """The functions without tokens, in the implementation that is installed."""
    import mpi4jax

    return getattr(mpi4jax, "notoken", mpi4jax)


def is_ours() -> bool:
    import mpi4jax

    return hasattr(mpi4jax, "notoken")


def empty_call(x: jax.Array) -> Case:
    empty = jax.jit(lambda x: x)
    return lambda: empty(x).block_until_ready()


# Calls of small operations: what it costs to get from Python to MPI.


def dispatch(effort: Effort) -> dict[str, list[float]]:
    mpi = import_mpi()
    comm = WORLD.Clone()
    x = jnp.ones(2, jnp.float32)
    send, recv = np.ones(2, np.float32), np.empty(2, np.float32)

    def total(x):
        return mpi.allreduce(x, op=MPI.SUM, comm=comm)

    def ten(x):
        for _ in range(10):
            x = mpi.allreduce(x, op=MPI.MAX, comm=comm)
        return x

    def mpi4py(calls):
        for _ in range(calls):
            comm.Allreduce(send, recv, op=MPI.SUM)

    def by_hand(calls):
        empty()
        mpi4py(calls)

    empty = empty_call(x)
    jitted, jitted_ten = jax.jit(total), jax.jit(ten)
    cases = {
        "empty": empty,
        "mpi4py": lambda: mpi4py(1),
        "by hand": lambda: by_hand(1),
        "by hand, 10": lambda: by_hand(10),
        "jit": lambda: jitted(x).block_until_ready(),
        "jit, 10": lambda: jitted_ten(x).block_until_ready(),
        "eager": lambda: total(x).block_until_ready(),
    }
    if is_ours():
        from mpi4jax.experimental import auto_tokenize

        tokenized, tokenized_ten = (jax.jit(auto_tokenize(f)) for f in (total, ten))
        cases["auto_tokenize"] = lambda: tokenized(x).block_until_ready()
        cases["auto_tokenize, 10"] = lambda: tokenized_ten(x).block_until_ready()
    return take_turns(cases, effort)


def eager(effort: Effort) -> dict[str, list[float]]:
    """Every operation called eagerly, and by hand: an empty jitted call and mpi4py's."""
    mpi = import_mpi()
    comm = WORLD.Clone()
    x, xs = jnp.ones(2, jnp.float32), jnp.ones((SIZE, 2), jnp.float32)
    send, recv = np.ones(2, np.float32), np.empty(2, np.float32)
    sends, recvs = np.ones((SIZE, 2), np.float32), np.empty((SIZE, 2), np.float32)
    empty = empty_call(x)
    at_root = RANK == 0

    def ping_pong():
        if at_root:
            mpi.send(x, 1, comm=comm)
            return mpi.recv(x, 1, comm=comm)
        y = mpi.recv(x, 0, comm=comm)
        mpi.send(x, 0, comm=comm)
        return y

    def ping_pong_by_hand():
        empty()  # one of the two calls; the other is below
        if at_root:
            comm.Send(send, 1)
            comm.Recv(recv, 1)
        else:
            comm.Recv(recv, 0)
            comm.Send(send, 0)

    pairs = {
        "allgather": (
            lambda: mpi.allgather(x, comm=comm),
            lambda: comm.Allgather(send, recvs),
        ),
        "allreduce": (
            lambda: mpi.allreduce(x, op=MPI.SUM, comm=comm),
            lambda: comm.Allreduce(send, recv, op=MPI.SUM),
        ),
        "alltoall": (
            lambda: mpi.alltoall(xs, comm=comm),
            lambda: comm.Alltoall(sends, recvs),
        ),
        "barrier": (lambda: mpi.barrier(comm=comm), comm.Barrier),
        "bcast": (lambda: mpi.bcast(x, 0, comm=comm), lambda: comm.Bcast(recv, 0)),
        "gather": (
            lambda: mpi.gather(x, 0, comm=comm),
            lambda: comm.Gather(send, recvs if at_root else None, 0),
        ),
        "reduce": (
            lambda: mpi.reduce(x, op=MPI.SUM, root=0, comm=comm),
            lambda: comm.Reduce(send, recv if at_root else None, op=MPI.SUM, root=0),
        ),
        "scan": (
            lambda: mpi.scan(x, op=MPI.SUM, comm=comm),
            lambda: comm.Scan(send, recv, op=MPI.SUM),
        ),
        "scatter": (
            lambda: mpi.scatter(xs if at_root else x, 0, comm=comm),
            lambda: comm.Scatter(sends if at_root else None, recv, 0),
        ),
        "send and recv": (ping_pong, ping_pong_by_hand),
        "sendrecv": (
            lambda: mpi.sendrecv(x, x, LEFT, RIGHT, comm=comm),
            lambda: comm.Sendrecv(send, RIGHT, recvbuf=recv, source=LEFT),
        ),
    }
    cases: dict[str, Case] = {}
    for name, (ours, theirs) in pairs.items():
        cases[name] = lambda ours=ours: jax.block_until_ready(ours())
        cases[f"{name}, by hand"] = lambda theirs=theirs: (empty(), theirs())
    return take_turns(cases, effort)


# Operations in a compiled loop: what they cost beside MPI.


def jax_memory(count: int) -> np.ndarray:
    """An array of NumPy's in memory that XLA allocated, as it does for its own."""
    array = jnp.zeros(count, jnp.float32)
    pointer = ctypes.cast(array.unsafe_buffer_pointer(), ctypes.POINTER(ctypes.c_float))
    view = np.ctypeslib.as_array(pointer, (count,))
    _keep_alive.append(array)
    view[:] = 1
    return view


_keep_alive: list[jax.Array] = []


def loops(effort: Effort) -> dict[str, list[float]]:
    mpi = import_mpi()
    comm = WORLD.Clone()
    samples = {}
    for size in SIZES:
        if size > effort.largest:
            continue
        count = size // 4
        x = jnp.ones(count, jnp.float32)
        bodies: dict[str, tuple[Callable, object]] = {
            "allreduce": (lambda x: mpi.allreduce(x, op=MPI.MAX, comm=comm), x),
            "bcast": (lambda x: mpi.bcast(x, 0, comm=comm), x),
            "sendrecv": (lambda x: mpi.sendrecv(x, x, LEFT, RIGHT, comm=comm), x),
        }
        if count % SIZE == 0:
            blocks = x.reshape(SIZE, -1)
            bodies["alltoall"] = lambda x: mpi.alltoall(x, comm=comm), blocks
            bodies["allgather"] = (
                lambda state: (state[0], mpi.allgather(state[0], comm=comm)),
                (blocks[0], blocks),
            )
        for name, (body, start) in bodies.items():
            calls = {"": _mpi4py_body(comm, name, np.ones(count, np.float32))}
            if size >= 1 << 22:
                # NumPy has large arrays in huge pages, XLA does not: half the truth each.
                calls[", JAX's memory"] = _mpi4py_body(comm, name, jax_memory(count))
            length = _loop_length(calls[""], effort)
            program = jax.jit(
                lambda x, n=length, b=body: jax.lax.fori_loop(0, n, lambda _, y: b(y), x)
            )
            case = lambda p=program, x=start: jax.block_until_ready(p(x))  # noqa: E731
            cases = {f"{name}, {size}": case}
            for memory, call in calls.items():
                cases[f"mpi4py, {name}, {size}{memory}"] = _repeated(call, length)
            for case, seconds in take_turns(cases, effort, effort.loop_rounds).items():
                samples[case] = [s / length for s in seconds]
    return samples


def _loop_length(call: Case, effort: Effort) -> int:
    call()
    seconds = WORLD.bcast(_time(call, 5), 0)
    return max(3, min(effort.loop, int(effort.loop_time / seconds)))


def _repeated(call: Case, length: int) -> Case:
    def loop():
        for _ in range(length):
            call()

    return loop


def _mpi4py_body(comm: MPI.Comm, name: str, buffer: np.ndarray) -> Case:
    """The same with mpi4py: in place where MPI can, else with the copy a loop needs."""
    result = buffer.copy() if buffer.base is None else jax_memory(buffer.size)
    part = buffer[: buffer.size // SIZE]

    def then_copy(call):
        def both():
            call()
            np.copyto(buffer, result)

        return both

    return {
        "allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.MAX),
        "bcast": lambda: comm.Bcast(buffer, 0),
        "sendrecv": then_copy(
            lambda: comm.Sendrecv(buffer, RIGHT, recvbuf=result, source=LEFT)
        ),
        "allgather": lambda: comm.Allgather(part, result),
        "alltoall": then_copy(lambda: comm.Alltoall(buffer, result)),
    }[name]


# One jitted call, over the size of its array.


def latency(effort: Effort) -> dict[str, list[float]]:
    mpi = import_mpi()
    comm = WORLD.Clone()
    total = jax.jit(lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm))
    cases: dict[str, Case] = {}
    for size in LATENCY_SIZES:
        if size > effort.largest:
            continue
        x = jnp.ones(size // 4, jnp.float32)
        send, recv = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        cases[f"jit, {size}"] = lambda x=x: total(x).block_until_ready()
        cases[f"mpi4py, {size}"] = lambda a=send, b=recv: comm.Allreduce(a, b, op=MPI.SUM)
    return take_turns(cases, effort)


def gloo(effort: Effort) -> dict[str, list[float]]:
    """JAX's own collectives over processes, which sum over an axis of devices."""
    port = 20000 + WORLD.bcast(os.getpid(), 0) % 20000
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", SIZE, RANK)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "ranks")
    spec = jax.sharding.PartitionSpec("ranks")
    sharding = jax.sharding.NamedSharding(mesh, spec)

    def psum(x):
        return jax.lax.psum(x, "ranks")

    def over_ranks(function):
        sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
        return jax.jit(sharded)

    samples = {}
    cases: dict[str, Case] = {}
    for size in LATENCY_SIZES:
        if size > effort.largest:
            continue
        local = np.ones(size // 4, np.float32)
        x = jax.make_array_from_process_local_data(sharding, local)
        program = over_ranks(lambda x: psum(x) + 0 * x)
        cases[f"jit, {size}"] = lambda p=program, x=x: p(x).block_until_ready()
    samples.update(take_turns(cases, effort))
    for size in SIZES:
        if size > effort.largest:
            continue
        local = np.ones(size // 4, np.float32)
        x = jax.make_array_from_process_local_data(sharding, local)
        length = max(3, effort.loop // (1 + size // (1 << 14)))
        program = over_ranks(
            lambda x, n=length: jax.lax.fori_loop(
                0, n, lambda _, y: psum(y) / SIZE + 0 * y, x
            )
        )
        case = {f"allreduce, {size}": lambda p=program, x=x: p(x).block_until_ready()}
        for name, seconds in take_turns(case, effort).items():
            samples[name] = [s / length for s in seconds]
    jax.distributed.shutdown()
    return samples


# What grows with the number of ranks, and with the number of operations in a function.


def growth(effort: Effort) -> dict[str, list[float]]:
    mpi = import_mpi()
    comm = WORLD.Clone()
    cases: dict[str, Case] = {}
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
        cases[f"mpi4py, {size}"] = _repeated(by_hand, length)
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


WORKLOADS = {
    f.__name__: f for f in (dispatch, eager, loops, latency, gloo, growth, programs)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    samples = WORKLOADS[args.workload](Effort(args.quick))
    if RANK == 0:
        args.output.write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
