"""The threads of the core."""

import signal
import sys

import pytest

NAMES = {"mpi4jax-watch", "mpi4jax-trace", "mpi4jax-progres"}

PROGRAM = f"""
    import time
    from contextlib import suppress
    from pathlib import Path
    import jax.numpy as jnp, mpi4jax
    from mpi4jax import diagnostics

    diagnostics.watch()
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
