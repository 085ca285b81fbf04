"""Correct programs of unusual kinds, in which ranks wait for long: `correct.py NAME`.

In each of them, some ranks wait in calls for what the watching threads can't see: another
thread, mpi4py, a callback, a file, somebody at the keyboard. None may be ended.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

#: Seconds for which somebody is slow, with reports after one second.
SLOW = 6.0


class Program(NamedTuple):
    """A program, and how it is run."""

    run: Callable[[], None]
    ranks: int
    code: int
    environ: Any


PROGRAMS: dict[str, Program] = {}


def program(ranks: int = 2, code: int = 0, **environ: str) -> Any:
    def register(run: Callable[[], None]) -> Callable[[], None]:
        PROGRAMS[run.__name__] = Program(run, ranks, code, MappingProxyType(environ))
        return run

    return register


class Loaded(NamedTuple):
    """The imports of most programs. Some do something before them."""

    jax: Any
    jnp: Any
    np: Any
    MPI: Any
    mpi: Any
    mpi4jax: Any
    world: Any
    rank: int


def load() -> Loaded:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from mpi4py import MPI

    import mpi4jax
    from mpi4jax import notoken

    world = MPI.COMM_WORLD
    if sys.argv[2:]:  # a form of communicators
        sys.path.append(str(Path(__file__).parent))
        import forms

        world = forms.put_in_place(sys.argv[2])
    loaded = Loaded(jax, jnp, np, MPI, notoken, mpi4jax, world, world.Get_rank())
    # The ranks ask each other from here on.
    notoken.barrier()
    return loaded


def in_thread(function: Callable[..., Any], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def big(jax: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted function with a call, that JAX runs in a thread of XLA's."""
    return jax.jit(lambda x: call(x * 1.5 + (x @ x).sum()) + x.T)  # type: ignore[no-any-return]


@program(ranks=3)
def names_by_rank() -> None:
    """Each rank gives a communicator a name of its own."""
    p = load()
    comm = p.world.Split(0, p.rank)
    comm.Set_name(f"solver of rank {p.rank}")
    if p.rank == 2:
        time.sleep(SLOW)
    assert p.mpi.allreduce(p.jnp.float32(1), p.MPI.SUM, comm=comm) == 3


class SigEvent(ctypes.Structure):
    """`struct sigevent` of Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 40),
    )


def in_thread_of_c(function: Callable[[], None], seconds: float) -> object:
    """Call a function later, in a thread that Python does not know until then.

    Gives what has to be kept for so long.
    """
    clock_monotonic, sigev_thread = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: function())
    address = ctypes.cast(callback, ctypes.c_void_p)
    event = SigEvent(notify=sigev_thread, function=address)
    timer = ctypes.c_void_p()
    # The interval, which is none, and the time, each in seconds and nanoseconds.
    when = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    code = libc.timer_create(clock_monotonic, ctypes.byref(event), ctypes.byref(timer))
    assert code == 0, os.strerror(ctypes.get_errno())
    code = libc.timer_settime(timer, 0, ctypes.byref(when), None)
    assert code == 0, os.strerror(ctypes.get_errno())
    return callback, event


#: Seconds after which a call is reported that a message ends before as long again is over.
REPORT = 4.0


@program(MPI4JAX_HANG_REPORT=str(REPORT))
def message_of_a_library() -> None:
    """A library in C sends from a thread of its own, of which nobody can know."""
    p = load()
    timer: object = None
    if p.rank == 1:
        x = p.np.ones(2, p.np.float32)
        timer = in_thread_of_c(lambda: p.world.Send(x, 0), 1.5 * REPORT)
        p.mpi.barrier()
    else:
        p.mpi.recv(p.jnp.zeros(2), 1, comm=p.world)
        # By then, all ranks would have been ended.
        time.sleep(REPORT)
        p.mpi.barrier()
    del timer


@program(ranks=3)
def handles_by_rank() -> None:
    """Rank 0 has made and freed a communicator, so that its handles have another order."""
    p = load()
    spare = p.MPI.COMM_SELF.Dup()
    first = p.world.Dup()
    if p.rank == 0:
        spare.Free()
    second, third = p.world.Dup(), p.world.Split(0, p.rank)
    for comm in (first, second, third, second, first):
        p.mpi.barrier(comm=comm)
    if p.rank == 2:
        time.sleep(SLOW)
    for comm in (second, first, third):
        p.mpi.barrier(comm=comm)


@program()
def two_threads() -> None:
    """Each rank has two threads with a communicator each."""
    p = load()
    a, b = p.world.Dup(), p.world.Dup()

    def late() -> None:
        time.sleep(SLOW)
        p.mpi.send(p.jnp.ones(3), 1, comm=b)

    if p.rank == 0:
        thread = in_thread(late)
        y = p.mpi.recv(p.jnp.zeros(3), 1, comm=a)
        thread.join()
    else:
        y = p.mpi.recv(p.jnp.zeros(3), 0, comm=b)
        p.mpi.send(y, 0, comm=a)
    assert y.sum() == 3


@program()
def two_threads_in_calls() -> None:
    """All threads of a rank are in calls, of which one can go on."""
    p = load()
    a, b, c = p.world.Dup(), p.world.Dup(), p.world.Dup()
    x = p.jnp.ones(3)
    if p.rank == 0:

        def relay() -> None:
            p.mpi.send(p.mpi.recv(x, 1, comm=b), 1, comm=c)

        thread = in_thread(relay)
        y = p.mpi.recv(x, 1, comm=a)
        thread.join()
    else:

        def reply() -> None:
            time.sleep(SLOW)
            p.mpi.send(x, 0, comm=b)

        thread = in_thread(reply)
        y = p.mpi.recv(x, 0, comm=c)
        p.mpi.send(y, 0, comm=a)
        thread.join()


@program()
def dispatched_while_mpi4py_sends() -> None:
    """A compiled program waits for a message while Python sends another one by mpi4py."""
    p = load()
    x = p.jnp.ones((300, 300))
    comm = p.world.Dup()
    if p.rank == 0:
        y = big(p.jax, lambda x: p.mpi.recv(x, 1))(x)
        time.sleep(SLOW)
        comm.send("go", 1)
        y.block_until_ready()
    else:
        run = big(p.jax, lambda x: p.mpi.sendrecv(x, x, 0, 0, comm=comm, sendtag=1))
        assert comm.recv(source=0) == "go"
        del run
        p.mpi.send(x, 0)


@program()
def mpi4py_answers_mpi4jax() -> None:
    """Rank 1 waits in mpi4jax for a message that rank 0 sends by mpi4py, late."""
    p = load()
    comm, x = p.world.Dup(), p.np.ones((300, 300), p.np.float32)
    if p.rank == 0:
        y = big(p.jax, lambda x: p.mpi.recv(x, 1))(p.jnp.asarray(x))
        time.sleep(SLOW)
        comm.Send(x, 1)
        y.block_until_ready()
    else:
        y = p.mpi.recv(p.jnp.asarray(x), 0, comm=comm)
        p.mpi.send(y, 0)
    assert y.shape == (300, 300)


@program(ranks=3)
def server_thread() -> None:
    """A thread of rank 0 waits for requests all the time, and its main thread works."""
    p = load()
    requests, answers = p.world.Dup(), p.world.Dup()
    x = p.jnp.ones(2)
    if p.rank == 0:

        def serve() -> None:
            for _ in range(2):
                p.mpi.recv(x, p.MPI.ANY_SOURCE, comm=requests)

        thread = in_thread(serve)
        time.sleep(SLOW)
        for rank in (1, 2):
            p.mpi.send(x, rank, comm=answers)
        thread.join()
    else:
        p.mpi.recv(x, 0, comm=answers)
        p.mpi.send(x, 0, comm=requests)


@program()
def sharded_program_dispatched() -> None:
    """A program on the devices of all processes waits while Python goes on."""
    import jax
    from mpi4py import MPI

    from mpi4jax import distributed
    from mpi4jax import notoken as mpi

    distributed.initialize()
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    rank = MPI.COMM_WORLD.Get_rank()
    mpi.barrier()
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), P("x"))
    x = jax.make_array_from_callback((600, 300), sharding, lambda _: np.ones((300, 300)))
    total = jax.jit(lambda x: (x.T @ x).sum())
    if rank == 0:
        y = total(x)
        time.sleep(SLOW)
        MPI.COMM_WORLD.Send(np.ones(2, np.float32), 1)
    else:
        mpi.recv(jnp.ones(2), 0, comm=MPI.COMM_WORLD)
        y = total(x)
    assert float(y) == 600 * 300 * 300


@program(ranks=3)
def order_of_first_use() -> None:
    """Communicators of the same ranks, which each rank uses in another order."""
    p = load()
    a, b = (p.world.Split(0, p.rank) for _ in range(2))
    x = p.jnp.ones(2)
    if p.rank == 0:
        p.mpi.send(x, 1, comm=b)
    p.mpi.barrier(comm=a)
    if p.rank == 1:
        p.mpi.recv(x, 0, comm=b)
    p.mpi.allreduce(x, p.MPI.SUM, comm=b)
    if p.rank == 2:
        time.sleep(SLOW)
    # Rank 0 waits on the one for rank 2. Rank 1 has sent its part, and is in a call on the
    # other.
    p.mpi.reduce(x, p.MPI.SUM, 0, comm=a)
    p.mpi.barrier(comm=b)


@program()
def messages_on_two_communicators() -> None:
    """A slow pair of messages: the other rank receives what one sends."""
    p = load()
    a, b = (p.world.Split(0, p.rank) for _ in range(2))
    x = p.jnp.ones(1 << 21)
    for comm in (a, b) if p.rank == 0 else (b, a):
        p.mpi4jax.wait(p.mpi4jax.isend(x[:2], 1 - p.rank, comm=comm))
    for comm in (a, b):
        p.mpi.recv(x[:2], 1 - p.rank, comm=comm)
    if p.rank == 0:
        p.mpi.send(x, 1, comm=a)
        time.sleep(SLOW)
        p.mpi.recv(x, 1, comm=b)
    else:
        time.sleep(SLOW)
        p.mpi.recv(x, 0, comm=a)
        p.mpi.send(x, 0, comm=b)


@program(ranks=3)
def large_message_to_a_slow_rank() -> None:
    """A sendrecv has got its message; what it sends is large, and nobody is there yet."""
    p = load()
    small, large = p.jnp.ones(2), p.jnp.ones(1 << 22)
    if p.rank == 0:
        p.mpi.sendrecv(large, small, source=1, dest=2)
        p.mpi.send(small, 1)
    elif p.rank == 1:
        p.mpi.send(small, 0)
        p.mpi.recv(small, 0)
    else:
        time.sleep(SLOW)
        p.mpi.recv(large, 0)


@program(ranks=3)
def large_exchange_with_a_slow_rank() -> None:
    """Several slow messages, and a request."""
    p = load()
    small, large = p.jnp.ones(2), p.jnp.ones(1 << 22)
    if p.rank == 0:
        p.mpi.exchange([large], [small], [1], [2])
        p.mpi.send(small, 1)
        p.mpi4jax.wait(p.mpi4jax.isendrecv(large, small, 1, 2))
        p.mpi.send(small, 1)
    elif p.rank == 1:
        for _ in range(2):
            p.mpi.send(small, 0)
            p.mpi.recv(small, 0)
    else:
        for _ in range(2):
            time.sleep(SLOW)
            p.mpi.recv(large, 0)


def _interrupted(wait: Callable[[Loaded], None], before: bool) -> None:
    seen: list[int] = []
    if before:
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    p = load()
    if not before:
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    if p.rank == 1:
        time.sleep(SLOW)
        p.mpi.barrier()
    else:
        pid = os.getpid()
        subprocess.Popen(
            ["sh", "-c", f"sleep 1; kill -INT {pid}; sleep 2; kill -INT {pid}"]
        )
        wait(p)
        time.sleep(0.1)
        assert seen, "the handler was not called"


@program()
def interrupt_that_is_handled() -> None:
    """Ctrl-C, with "save and stop" as its handler, which runs after the call."""
    _interrupted(lambda p: p.mpi.barrier(), before=True)


@program(MPI4JAX_HANG_REPORT="0")
def interrupt_that_is_handled_without_reports() -> None:
    """A slow rank, where nothing is reported."""
    _interrupted(lambda p: p.mpi.barrier(), before=False)


@program()
def interrupt_that_is_handled_at_once() -> None:
    """Ctrl-C while a compiled program waits: Python has handled it already."""

    def wait(p: Loaded) -> None:
        def barrier(x: Any) -> Any:
            p.mpi.barrier()
            return x

        y = big(p.jax, barrier)(p.jnp.ones((300, 300)))
        time.sleep(4)
        y.block_until_ready()

    _interrupted(wait, before=True)


@program(ranks=3)
def reduce_by_mpi4py_and_mpi4jax() -> None:
    """The root leaves its part of a reduction to mpi4jax, the others to mpi4py."""
    p = load()
    comm, x = p.world.Dup(), p.np.ones(2, p.np.float32)
    if p.rank == 0:
        y = p.mpi.reduce(p.jnp.asarray(x), p.MPI.SUM, 0, comm=comm)
        assert y.sum() == 6
    else:
        if p.rank == 2:
            time.sleep(SLOW)
        comm.Reduce(x, None, p.MPI.SUM, 0)
    p.mpi.barrier(comm=comm)


SAVED = "the last save is complete"


@program(code=3)
def save_at_exit() -> None:
    """A function that was registered before the import of mpi4jax saves at exit."""

    def save() -> None:
        time.sleep(SLOW)
        print(SAVED, flush=True)

    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 1:
        atexit.register(save)
    p = load()
    if p.rank == 1:
        sys.exit(3)
    print(SAVED)
    p.mpi.barrier()


@program(ranks=3)
def messages_at_exit() -> None:
    """A function that sends the message that another rank waits for."""
    state: dict[str, Loaded] = {}

    def save() -> None:
        time.sleep(SLOW)
        p = state["loaded"]
        p.world.Send(p.np.ones(2, p.np.float32), 1)

    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 0:
        atexit.register(save)
    p = load()
    state["loaded"] = p
    if p.rank == 1:
        p.mpi.recv(p.jnp.ones(2), 0, comm=p.world)
        p.mpi.send(p.jnp.ones(2), 2)
    if p.rank == 2:
        p.mpi.recv(p.jnp.ones(2), 1)
    sys.exit(0)


@program()
def slow_callback() -> None:
    """A callback in a compiled program takes long, and uses mpi4py."""
    p = load()
    comm = p.world.Dup()

    def look(x: Any) -> Any:
        time.sleep(SLOW)
        comm.send("go", 1)
        return x

    def step(x: Any) -> Any:
        x = p.mpi.allreduce(x, p.MPI.SUM)
        if p.rank == 0:
            x = p.jax.pure_callback(look, x, x)
        return p.mpi.allreduce(x, p.MPI.SUM)

    y = p.jax.jit(step)(p.jnp.ones((100, 100)))
    if p.rank == 1:
        assert comm.recv(source=0) == "go"
    assert y.block_until_ready().sum() == 40000


@program(ranks=1)
def spawned_process() -> None:
    """A process that was spawned is late."""
    p = load()
    parent = p.MPI.Comm.Get_parent()
    if parent == p.MPI.COMM_NULL:
        arguments = ["-P", __file__, "spawned_process"]
        other = p.MPI.COMM_SELF.Spawn(sys.executable, arguments, maxprocs=1)
    else:
        other = parent
        time.sleep(SLOW)
    merged = other.Merge(high=other == parent)
    p.mpi.barrier(comm=merged)
    if other == parent:
        time.sleep(SLOW)
    p.mpi.barrier(comm=merged)
    other.Disconnect()


@program()
def somebody_at_the_keyboard() -> None:
    """A debugger waits for somebody to type something."""
    p = load()
    if p.rank == 1:
        import pdb

        read, write = os.pipe()
        in_thread(lambda: (time.sleep(SLOW), os.write(write, b"continue\n")))
        with open(read) as stdin, open(os.devnull, "w") as stdout:
            pdb.Pdb(stdin=stdin, stdout=stdout, nosigint=True).set_trace()
    p.mpi.barrier()


@program()
def long_compilation() -> None:
    """XLA compiles for long."""
    p = load()
    if p.rank == 1:

        def many(x: Any) -> Any:
            for _ in range(150):
                x = p.jnp.sin(x @ x) + x
            return x

        begin = time.monotonic()
        while time.monotonic() - begin < SLOW:
            p.jax.clear_caches()
            p.jax.jit(many)(p.jnp.ones((2, 2))).block_until_ready()
    p.mpi.barrier()


def _slow_pipe() -> str:
    """A file that somebody else reads, and slowly."""
    name = f"/tmp/mpi4jax-slow-{os.getpid()}"
    os.mkfifo(name)
    subprocess.Popen(["sh", "-c", f"sleep {SLOW}; cat {name} >/dev/null; rm {name}"])
    return name


@program()
def slow_file() -> None:
    """A checkpoint is written to a slow disk."""
    p = load()
    if p.rank == 0:
        Path(_slow_pipe()).write_bytes(bytes(1 << 20))
    p.mpi.barrier()


@program()
def slow_file_in_another_thread() -> None:
    """A thread writes a checkpoint, and the main thread waits for that."""
    p = load()
    if p.rank == 0:
        with ThreadPoolExecutor(2) as pool:
            pool.submit(Path(_slow_pipe()).write_bytes, bytes(1 << 20)).result()
    p.mpi.barrier()


@program()
def subprocess_that_takes_long() -> None:
    """A rank has started a program, and waits for it."""
    p = load()
    if p.rank == 1:
        subprocess.run(["sleep", str(SLOW)], check=True)
    p.mpi.barrier()


def _stop_for_a_while(pids: list[int]) -> None:
    names = " ".join(map(str, pids))
    subprocess.Popen(
        ["sh", "-c", f"sleep 1; kill -STOP {names}; sleep {SLOW}; kill -CONT {names}"]
    )


@program()
def stopped_for_a_while() -> None:
    """A rank is stopped, and goes on."""
    p = load()
    if p.rank == 1:
        _stop_for_a_while([os.getpid()])
        time.sleep(2)
    p.mpi.barrier()


@program(ranks=3)
def suspended_for_a_while() -> None:
    """The whole job is suspended in the middle of a message, and goes on."""
    p = load()
    pids = p.world.allgather(os.getpid())
    if p.rank == 0:
        _stop_for_a_while(pids)
    x = p.jnp.ones(1 << 20)
    begin = time.monotonic()
    while p.mpi.bcast(p.jnp.float32(time.monotonic() - begin), 0) < SLOW + 3:
        for shift in (1, 2):
            peers = (p.rank - shift) % 3, (p.rank + shift) % 3
            x = p.mpi.sendrecv(x, x, *peers)


@program()
def request_of_mpi4py() -> None:
    """A large message is received by a request of mpi4py's that was made before."""
    p = load()
    comm, x = p.world.Dup(), p.np.ones(1 << 22, p.np.float32)
    if p.rank == 0:
        request = comm.Irecv(x, 1)
        p.mpi.barrier(comm=comm)
        time.sleep(SLOW)
        p.mpi.barrier(comm=comm)
        request.Wait()
    else:
        p.mpi.barrier(comm=comm)
        p.mpi.send(p.jnp.asarray(x), 0, comm=comm)
        p.mpi.barrier(comm=comm)


@program()
def request_during_a_computation() -> None:
    """A large message is received by a request, after a long computation."""
    p = load()
    x = p.jnp.ones(1 << 22)
    if p.rank == 0:
        request = p.mpi4jax.irecv(x, 1)
        time.sleep(SLOW)
        p.mpi4jax.wait(request)
    else:
        p.mpi.send(x, 0)
    p.mpi.barrier()


@program()
def event_loop() -> None:
    """asyncio runs a call in a thread, and something else meanwhile."""
    p = load()
    comm, x = p.world.Dup(), p.jnp.ones(2)

    async def main() -> None:
        call = asyncio.create_task(asyncio.to_thread(p.mpi.recv, x, 1, comm=comm))
        await asyncio.sleep(SLOW)
        p.mpi.send(x, 1)
        await call

    if p.rank == 0:
        asyncio.run(main())
    else:
        p.mpi.recv(x, 0)
        p.mpi.send(x, 0, comm=comm)


@program()
def timer() -> None:
    """A timer sends what another rank waits for."""
    p = load()
    a, b, x = p.world.Dup(), p.world.Dup(), p.jnp.ones(2)
    if p.rank == 0:
        threading.Timer(SLOW, lambda: p.mpi.send(x, 1, comm=a)).start()
        p.mpi.recv(x, 1, comm=b)
    else:
        p.mpi.recv(x, 0, comm=a)
        p.mpi.send(x, 0, comm=b)


@program()
def signal_handler() -> None:
    """A handler sends what another rank waits for, while the main thread waits for JAX."""
    p = load()
    a, x = p.world.Dup(), p.jnp.ones((300, 300))
    if p.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: a.Send(p.np.asarray(x), 1))
        result = big(p.jax, lambda x: p.mpi.recv(x, 1))(x)
        signal.setitimer(signal.ITIMER_REAL, SLOW)
        result.block_until_ready()
    else:
        p.mpi.send(p.mpi.recv(x, 0, comm=a), 0)


@program()
def pool_of_threads() -> None:
    """The main thread waits for a pool, of which one thread is in a call."""
    p = load()
    a, b, x = p.world.Dup(), p.world.Dup(), p.jnp.ones(2)

    def late() -> None:
        time.sleep(SLOW)
        p.mpi.send(x, 1, comm=a)

    if p.rank == 0:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda f: f(), (lambda: p.mpi.recv(x, 1, comm=b), late)))
    else:
        p.mpi.recv(x, 0, comm=a)
        p.mpi.send(x, 0, comm=b)


@program()
def long_computation_in_jax() -> None:
    """XLA computes for long, between two calls of a compiled program."""
    p = load()

    def work(x: Any) -> Any:
        return p.jax.lax.fori_loop(0, 300, lambda _, x: p.jnp.sin(x @ x), x)

    x = p.jnp.ones((50, 50))
    begin = time.monotonic()
    p.jax.jit(work)(x).block_until_ready()
    p.jax.jit(work)(x).block_until_ready()
    turns = int(SLOW / (time.monotonic() - begin) * 4) + 1

    def step(x: Any) -> Any:
        x = p.mpi.allreduce(x, p.MPI.MAX)
        if p.rank == 1:
            x = p.jax.lax.fori_loop(0, turns, lambda _, x: work(x), x)
        return p.mpi.allreduce(x, p.MPI.SUM)

    y = p.jax.jit(step)(x)
    y.block_until_ready()


@program(ranks=3)
def early_end_and_a_slow_rank() -> None:
    """Rank 0 is done; rank 1 waits for rank 2, which is slow."""
    p = load()
    if p.rank == 1:
        p.mpi.recv(p.jnp.ones(2), 2)
    if p.rank == 2:
        time.sleep(SLOW)
        p.mpi.send(p.jnp.ones(2), 1)


@program()
def file_instead_of_a_message() -> None:
    """A thread of rank 0 writes a file that rank 1 looks for, while both are in calls."""
    p = load()
    name = Path(f"/tmp/mpi4jax-file-{p.world.bcast(os.getpid())}")
    a, x = p.world.Dup(), p.jnp.ones(2)
    if p.rank == 0:
        in_thread(lambda: (time.sleep(SLOW), name.touch()))
        p.mpi.recv(x, 1, comm=a)
        name.unlink()
    else:
        while not name.exists():
            time.sleep(0.1)
        p.mpi.send(x, 0, comm=a)


@program()
def slow_operator() -> None:
    """A reduction calls a function of Python's that takes long."""
    p = load()

    def add(a: Any, b: Any, _: Any) -> None:
        time.sleep(SLOW)
        x, y = (p.np.frombuffer(part, p.np.float32) for part in (a, b))
        y += x

    op = p.MPI.Op.Create(add, commute=True)
    y = p.mpi.allreduce(p.jnp.ones(2, p.jnp.float32), op)
    assert y.sum() == 4


@program(MPI4JAX_PROFILE="1")
def late_end_of_a_profile() -> None:
    """Rank 1 comes late to the end of the profile."""
    p = load()
    if p.rank == 1:
        time.sleep(SLOW)


@program(ranks=4)
def rows_and_a_slow_rank() -> None:
    """Rows of a grid communicate, and one rank of one row is slow."""
    p = load()
    row = p.world.Split(p.rank // 2, p.rank)
    if p.rank == 3:
        time.sleep(SLOW)
    for _ in range(3):
        p.mpi.allreduce(p.jnp.ones(2), p.MPI.SUM, comm=row)
    p.mpi.barrier()


@program(MPI4JAX_CHECK="1")
def checked_and_slow() -> None:
    """Calls are compared before they are made, and a rank is slow."""
    p = load()
    comm = p.world.Split(0, p.rank)
    comm.Set_name(f"solver of rank {p.rank}")
    if p.rank == 1:
        time.sleep(SLOW)
    p.mpi.allreduce(p.jnp.ones(2), p.MPI.SUM, comm=comm)
    p.mpi.sendrecv(p.jnp.ones(2), p.jnp.ones(2), 1 - p.rank, 1 - p.rank)


@program(ranks=3)
def communicators_made_in_a_loop() -> None:
    """Two ranks make communicators by mpi4py, again and again, and another one waits."""
    p = load()
    pair = p.world.Split(p.rank // 2, p.rank)
    p.mpi.barrier(comm=pair)
    if p.rank == 2:
        p.mpi.recv(p.jnp.ones(2), 0, comm=p.world)
        return
    # Both end after the same number.
    begin = time.monotonic()
    while pair.bcast(time.monotonic() - begin < SLOW):
        for _ in range(100):
            pair.Dup().Free()
    if p.rank == 0:
        p.mpi.send(p.jnp.ones(2), 2, comm=p.world)


@program()
def communicator_that_a_thread_makes() -> None:
    """Rank 0 makes a communicator, for which a thread of rank 1 comes late."""
    p = load()
    x = p.jnp.ones(2)
    if p.rank == 0:
        p.world.Dup()
        p.mpi.send(x, 1, comm=p.world)
    else:

        def late() -> None:
            time.sleep(SLOW)
            p.world.Dup()

        thread = in_thread(late)
        p.mpi.recv(x, 0, comm=p.world)
        thread.join()


@program(ranks=3)
def shared_default_communicator() -> None:
    """mpi4py uses the default communicator, too."""
    p = load()
    from mpi4jax._src.utils import get_default_comm

    comm, x = get_default_comm(), p.np.ones(2, p.np.float32)
    if p.rank == 0:
        p.mpi.reduce(p.jnp.asarray(x), p.MPI.SUM, 0)
    else:
        if p.rank == 2:
            time.sleep(SLOW)
        comm.Reduce(x, None, p.MPI.SUM, 0)
    p.mpi.barrier()


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]].run()
