"""A short form of a long run (`tests/soak.py`)."""

from pathlib import Path

import processes

SOAK = Path(__file__).parents[1] / "soak.py"


def test_communicators_that_are_freed_leave_nothing():
    """Fails with 20 MB and more if the programs of a halo plan stay."""
    done = processes.run("-P", SOAK, 40, ranks=2, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


ATTRIBUTES = """
    import jax.numpy as jnp, mpi4jax
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    mpi4jax.allreduce(jnp.ones(1), op=MPI.SUM, comm=world)
    world.Create_cart([1])
    comm, kept = world.Dup(), []
    for _ in range(2):
        keyval = MPI.Comm.Create_keyval(lambda comm, keyval, x: x, lambda *_: None)
        comm.Set_attr(keyval, 1)
    for _ in range(40):
        comm.Dup().Free()
        kept.append(world.Dup())
"""


def test_communicators_with_attributes_are_freed(launch):
    """Fails with SIGSEGV on MPICH, if it frees the last one of its 32 first attributes."""
    done = launch(ATTRIBUTES)
    assert done.returncode == 0, done.stderr
