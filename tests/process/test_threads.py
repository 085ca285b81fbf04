"""The threads of the core."""

import signal
import sys

import pytest

PROGRAM = """
    from pathlib import Path
    import jax.numpy as jnp, mpi4jax
    from mpi4jax import diagnostics

    diagnostics.watch()
    request = mpi4jax.isendrecv(jnp.ones(1), jnp.ones(1), 0, 0)
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
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
    assert {"mpi4jax-watch", "mpi4jax-trace", "mpi4jax-progres"} <= set(masks)
    for name, mask in masks.items():
        blocked = {sent for sent in signal.Signals if mask >> (sent - 1) & 1}
        assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= blocked, name
        assert not {signal.SIGSEGV, signal.SIGABRT} & blocked, name
