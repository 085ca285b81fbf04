"""Timed calls of mpi4jax, and of mpi4py beside them, on every rank of an mpiexec.

All cases of a workload take turns, round after round, so that what disturbs the machine
disturbs them alike. A sample is the time of one call in seconds, averaged over a burst of
calls, on the rank where it took longest.

`python -m mpi4jax bench` and doctor measure with this. So does benchmarks/measure.py, which
takes this file by its path to measure the original mpi4jax: it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
#: The operations that are called in loops.
IN_LOOPS = ("allreduce", "bcast", "sendrecv", "allgather", "alltoall")

#: A function without arguments whose call is timed.
Thunk = Callable[[], object]
Samples = dict[str, list[float]]
Buffer = np.ndarray[Any, Any]


class Effort(NamedTuple):
    """Duration of the measurements."""

    rounds: int = 15
    burst: float = 0.03  # seconds of one sample
    loop: int = 1000  # operations in a loop, fewer if they are slow
    loop_time: float = 1.0
    loop_rounds: int = 5
    largest: int = 1 << 24


QUICK = Effort(
    rounds=3, burst=0.002, loop=20, loop_time=0.02, loop_rounds=3, largest=1 << 20
)


def take_turns(cases: dict[str, Thunk], effort: Effort, rounds: int = 0) -> Samples:
    """Time all cases, in calls per sample that fill a burst."""
    calls = {name: _calls_in(case, effort.burst) for name, case in cases.items()}
    samples: Samples = {name: [] for name in cases}
    for _ in range(rounds or effort.rounds):
        for name, case in cases.items():
            samples[name].append(_time(case, calls[name]))
    return samples


def _time(case: Thunk, calls: int) -> float:
    WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        case()
    seconds: float = WORLD.allreduce(time.perf_counter() - start, op=MPI.MAX)
    return seconds / calls


def _calls_in(case: Thunk, seconds: float) -> int:
    case()  # compiles
    calls = 1
    while (elapsed := _time(case, calls) * calls) < seconds / 2:
        calls = min(int(1 + calls * min(10, seconds / elapsed)), 100_000)
    return calls


def import_mpi() -> Any:
    """The functions without tokens, in the implementation that is installed."""
    try:
        return importlib.import_module("mpi4jax.notoken")
    except ModuleNotFoundError:  # the original has them at the top level
        return importlib.import_module("mpi4jax")


def awaited(function: Callable[[Any], Any], x: Any) -> Thunk:
    """A function that returns when its result, one array, is ready."""
    return lambda: function(x).block_until_ready()


def _await_results(call: Thunk) -> None:
    jax.block_until_ready(call())


def in_turn(first: Thunk, second: Thunk) -> Thunk:
    return lambda: (first(), second())


def repeated(call: Thunk, length: int) -> Thunk:
    def loop() -> None:
        for _ in range(length):
            call()

    return loop


def empty_call(x: jax.Array) -> Thunk:
    return awaited(jax.jit(lambda x: x), x)


# Calls of small operations: the cost of getting from Python to MPI.


def dispatch(effort: Effort) -> Samples:
    mpi = import_mpi()
    comm = WORLD.Clone()
    x = jnp.ones(2, jnp.float32)
    send, recv = np.ones(2, np.float32), np.empty(2, np.float32)

    def total(x: Any) -> Any:
        return mpi.allreduce(x, op=MPI.SUM, comm=comm)

    def ten(x: Any) -> Any:
        for _ in range(10):
            x = mpi.allreduce(x, op=MPI.MAX, comm=comm)
        return x

    def mpi4py(calls: int) -> None:
        for _ in range(calls):
            comm.Allreduce(send, recv, op=MPI.SUM)

    def by_hand(calls: int) -> None:
        empty()
        mpi4py(calls)

    empty = empty_call(x)
    jitted, jitted_ten = jax.jit(total), jax.jit(ten)
    cases = {
        "empty": empty,
        "mpi4py": lambda: mpi4py(1),
        "by hand": lambda: by_hand(1),
        "by hand, 10": lambda: by_hand(10),
        "jit": awaited(jitted, x),
        "jit, 10": awaited(jitted_ten, x),
        "eager": awaited(total, x),
    }
    if mpi.__name__ == "mpi4jax.notoken":
        from mpi4jax.experimental import auto_tokenize

        tokenized, tokenized_ten = (jax.jit(auto_tokenize(f)) for f in (total, ten))
        cases["auto_tokenize"] = awaited(tokenized, x)
        cases["auto_tokenize, 10"] = awaited(tokenized_ten, x)
    return take_turns(cases, effort)


def eager(effort: Effort) -> Samples:
    """Every operation called eagerly, and by hand: an empty jitted call and mpi4py's."""
    mpi = import_mpi()
    comm = WORLD.Clone()
    x, xs = jnp.ones(2, jnp.float32), jnp.ones((SIZE, 2), jnp.float32)
    send, recv = np.ones(2, np.float32), np.empty(2, np.float32)
    sends, recvs = np.ones((SIZE, 2), np.float32), np.empty((SIZE, 2), np.float32)
    empty = empty_call(x)
    at_root = RANK == 0

    def ping_pong() -> Any:
        if at_root:
            mpi.send(x, 1, comm=comm)
            return mpi.recv(x, 1, comm=comm)
        if RANK > 1:
            return x
        y = mpi.recv(x, 0, comm=comm)
        mpi.send(x, 0, comm=comm)
        return y

    def ping_pong_by_hand() -> None:
        empty()  # one of the two calls; the other is below
        if at_root:
            comm.Send(send, 1)
            comm.Recv(recv, 1)
        elif RANK == 1:
            comm.Recv(recv, 0)
            comm.Send(send, 0)

    def start_and_wait_by_hand() -> None:
        empty()  # as above
        MPI.Request.Waitall([comm.Irecv(recv, LEFT), comm.Isend(send, RIGHT)])

    pairs: dict[str, tuple[Thunk, Thunk]] = {
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
    if hasattr(mpi, "isendrecv"):  # the original has no nonblocking operations
        pairs["isendrecv and wait"] = (
            lambda: mpi.wait(mpi.isendrecv(x, x, LEFT, RIGHT, comm=comm)),
            start_and_wait_by_hand,
        )
    if SIZE == 1:  # MPI need not buffer a message
        del pairs["send and recv"]
    cases: dict[str, Thunk] = {}
    for name, (ours, theirs) in pairs.items():
        cases[name] = functools.partial(_await_results, ours)
        cases[f"{name}, by hand"] = in_turn(empty, theirs)
    return take_turns(cases, effort)


# Operations in a compiled loop: their cost beside MPI.


def jax_memory(count: int) -> Buffer:
    """A NumPy array in memory that XLA allocated, as for its own arrays."""
    array = jnp.zeros(count, jnp.float32)
    pointer = ctypes.cast(array.unsafe_buffer_pointer(), ctypes.POINTER(ctypes.c_float))
    view = np.ctypeslib.as_array(pointer, (count,))
    _keep_alive.append(array)
    view[:] = 1
    return view


_keep_alive: list[jax.Array] = []


def loops(
    effort: Effort, operations: Sequence[str] = IN_LOOPS, sizes: Sequence[int] = SIZES
) -> Samples:
    mpi = import_mpi()
    comm = WORLD.Clone()
    samples = {}
    for size in sizes:
        if size > effort.largest:
            continue
        count = size // 4
        bodies = bodies_of_loops(mpi, comm, count)
        for name in operations:
            if name not in bodies:
                continue
            body, start = bodies[name]
            calls = {"": mpi4py_body(comm, name, np.ones(count, np.float32))}
            if size >= 1 << 22 and jax.default_backend() == "cpu":
                # NumPy has large arrays in huge pages, XLA does not: half the truth each.
                calls[", JAX's memory"] = mpi4py_body(comm, name, jax_memory(count))
            length = loop_length(calls[""], effort)
            cases = {f"{name}, {size}": loop_over(body, start, length)}
            for memory, call in calls.items():
                cases[f"mpi4py, {name}, {size}{memory}"] = repeated(call, length)
            for case, seconds in take_turns(cases, effort, effort.loop_rounds).items():
                samples[case] = [s / length for s in seconds]
    return samples


def bodies_of_loops(
    mpi: Any, comm: MPI.Intracomm, count: int
) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """The bodies of loops, each with the value that it begins with."""
    x = jnp.ones(count, jnp.float32)
    bodies: dict[str, tuple[Callable[[Any], Any], Any]] = {
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
    return bodies


def loop_over(body: Callable[[Any], Any], start: Any, length: int, **options: Any) -> Thunk:
    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, length, lambda _, y: body(y), x, **options)

    return functools.partial(_await_results, functools.partial(jax.jit(loop), start))


def loop_length(call: Thunk, effort: Effort) -> int:
    call()
    seconds = WORLD.bcast(_time(call, 5), 0)
    return max(3, min(effort.loop, int(effort.loop_time / seconds)))


def mpi4py_body(comm: MPI.Intracomm, name: str, buffer: Buffer) -> Thunk:
    """The body of a loop with mpi4py: in place where MPI can, else with a copy."""
    result = buffer.copy() if buffer.base is None else jax_memory(buffer.size)
    part = buffer[: buffer.size // SIZE]

    def then_copy(call: Thunk) -> Thunk:
        return in_turn(call, lambda: np.copyto(buffer, result))

    bodies: dict[str, Thunk] = {
        "allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.MAX),
        "bcast": lambda: comm.Bcast(buffer, 0),
        "sendrecv": then_copy(
            lambda: comm.Sendrecv(buffer, RIGHT, recvbuf=result, source=LEFT)
        ),
        "allgather": lambda: comm.Allgather(part, result),
        "alltoall": then_copy(lambda: comm.Alltoall(buffer, result)),
    }
    return bodies[name]


# One jitted call, over the size of its array.


def latency(effort: Effort) -> Samples:
    mpi = import_mpi()
    comm = WORLD.Clone()
    total = jax.jit(lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm))
    cases: dict[str, Thunk] = {}
    for size in LATENCY_SIZES:
        if size > effort.largest:
            continue
        x = jnp.ones(size // 4, jnp.float32)
        send, recv = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        cases[f"jit, {size}"] = awaited(total, x)
        cases[f"mpi4py, {size}"] = functools.partial(comm.Allreduce, send, recv, op=MPI.SUM)
    return take_turns(cases, effort)
