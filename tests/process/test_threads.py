"""The threads of the core, and XLA's threads in which programs run."""

import signal
import sys

import pytest

NAMES = {"mpi4jax-watch", "mpi4jax-receive", "mpi4jax-trace", "mpi4jax-progres"}

PROGRAM = f"""
    import time
    from contextlib import suppress
    from pathlib import Path
    import jax.numpy as jnp, mpi4jax

    request = mpi4jax.isendrecv(jnp.ones(1), jnp.ones(1), 0, 0)
    threads = {{}}
    while not {NAMES} <= set(threads):  # a new thread gives itself its name
        time.sleep(0.01)
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                threads[(task / "comm").read_text().strip()] = task
    for name, task in threads.items():
        if name.startswith("mpi4jax-"):
            status = dict(line.split(":", 1) for line in (task / "status").open())
            print(name, status["SigBlk"].strip())
    mpi4jax.wait(request)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="says which signals threads block")
def test_signals_go_to_the_threads_of_the_program(launch, tmp_path):
    """Fails if a thread of the core gets a signal that the program waits for."""
    done = launch(PROGRAM, MPI4JAX_TRACE=str(tmp_path / "trace"))
    assert done.returncode == 0, done.stderr
    masks = {name: int(mask, 16) for name, mask in map(str.split, done.stdout.splitlines())}
    assert set(masks) >= NAMES
    for name, mask in masks.items():
        blocked = {sent for sent in signal.Signals if mask >> (sent - 1) & 1}
        assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= blocked, name
        assert not {signal.SIGSEGV, signal.SIGABRT} & blocked, name


@pytest.mark.parametrize(
    "call",
    [
        "mpi.allreduce(x, op=MPI.SUM)",
        "jax.jit(lambda x: mpi.allreduce(x, op=MPI.SUM))(x)",
    ],
)
def test_communicators_are_made_after_programs_in_flight(launch, call):
    """Both use COMM_WORLD: at the same time, MPI takes their messages for each other's."""
    done = launch(
        f"""
        import jax, jax.numpy as jnp, mpi4jax
        from mpi4jax import notoken as mpi
        from mpi4py import MPI

        def step(_, x):
            # XLA runs a program in a thread of its own if it computes enough.
            return mpi.allreduce(x @ jnp.eye(200), op=MPI.SUM, comm=MPI.COMM_WORLD) / 2

        loop = jax.jit(lambda x: jax.lax.fori_loop(0, 100, step, x))
        x = loop(jnp.ones((200, 200))).block_until_ready()
        MPI.COMM_WORLD.Barrier()
        in_flight = loop(x)
        {call}
        assert (in_flight == 1).all()
        """,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr


def test_frames_of_a_running_thread(launch):
    """Fails with Python < 3.12 if garbage is collected while a frame is read."""
    done = launch("""
        import gc, random, sys, threading, time
        from mpi4jax._internal.watch.whereabouts import whereabouts

        def next_call(depth):
            return random.choice(functions)(depth)

        # Frames of many sizes: where one ends, another one does not begin.
        functions = []
        for size in range(1, 40, 3):
            names = ", ".join(f"a{index}" for index in range(size))
            namespace = {"next_call": next_call, "time": time}
            exec(
                f"def call(depth):\\n"
                f"    {names}, = [1.5 * depth] * {size}\\n"
                f"    return next_call(depth - 1) if depth else time.sleep(1e-6)",
                namespace,
            )
            functions.append(namespace["call"])

        def work():
            while not is_done:
                functions[0](random.randrange(5, 90))

        is_done = False
        gc.callbacks.append(lambda *_: [None for _ in range(300)])
        gc.set_threshold(1)
        sys.setswitchinterval(1e-6)
        thread = threading.Thread(target=work)
        thread.start()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            whereabouts([])
        is_done = True
        thread.join()
        assert gc.isenabled()
        """)
    assert done.returncode == 0, done.stderr
