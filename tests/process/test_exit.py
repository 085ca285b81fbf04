"""Leaving with work under way: it is finished first, and MPI after it."""

import re

import pytest

UNFINISHED = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi
    from mpi4jax.experimental import auto_tokenize

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    mpi.barrier()

    def program(x):
        y = jnp.ones((400, 400)) + x.sum()
        for _ in range(5):
            y = y @ y / 400
        x = x + 0 * jnp.nan_to_num(y).sum()
        return mpi.sendrecv(x, x, left, right)

    program = {transform}
    for _ in range(20):
        program(jnp.ones(100_000))
    print("left", flush=True)
"""


@pytest.mark.parametrize(
    "transform",
    ["program", "jax.jit(program)", "jax.jit(auto_tokenize(program))"],
    ids=["eager", "jit", "auto_tokenize"],
)
def test_exit_without_waiting(launch, transform):
    # Calls that run while MPI is finalised crash or hang.
    done = launch(UNFINISHED.format(transform=transform), ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left") == 2


LOST = """
    import sys
    import jax, jax.numpy as jnp, mpi4jax
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    x = jnp.ones(3)
    mpi4jax.notoken.barrier()
    requests = [mpi4jax.isend(x, 1 - rank)]
    jax.jit(lambda x: mpi4jax.irecv(x, 1 - rank))(x)
    if rank == 0:
        never = mpi4jax.irecv(x, 1, tag=9)
    if {fails}:
        raise ValueError("an error")
"""


@pytest.mark.parametrize("fails", [False, True])
def test_requests_that_nobody_waits_for(launch, fails):
    """They are named, also where an exception has lost them."""
    done = launch(LOST.format(fails=fails), ranks=2)
    assert (done.returncode == 0) == (not fails)
    for text in (
        "r0 | 3 requests were never waited for",
        "r1 | 2 requests were never waited for",
        "  the isend started at ",
        "  the irecv started at ",
        ", which is still in flight",
    ):
        assert text in done.stderr
    assert done.stderr.count("which is still in flight") == 1


LONG_AGO = """
    import jax, jax.numpy as jnp, mpi4jax
    from mpi4py import MPI

    x = jnp.ones(3)
    first = mpi4jax.iallreduce(x, op=MPI.SUM)  # line 6
    second = jax.jit(lambda x: mpi4jax.ibcast(x, 0))(x)  # line 7

    def one():
        mpi4jax.iallreduce(x, op=MPI.SUM)  # line 10

    def another():
        mpi4jax.iallreduce(x, op=MPI.SUM)  # line 13

    for function in (one, another, another):
        function()
    for _ in range(5000):
        mpi4jax.wait(mpi4jax.isendrecv(x, x, 0, 0))
"""


def test_requests_that_were_lost_long_ago(launch):
    """Fails if lines are forgotten, or are those of the call that was compiled first."""
    done = launch(LONG_AGO)
    assert done.returncode == 0, done.stderr
    *_, report = done.stderr.partition("r0 | 5 requests were never waited for\n")
    lines = re.findall(r"  the (\w+) started at \S+:(\d+)(?: in \S+)?(.*)", report)
    assert lines == [
        ("iallreduce", "6", ""),
        ("ibcast", "7", ""),
        ("iallreduce", "10", ""),
        ("iallreduce", "13", " (2 times)"),
    ]


def test_exit_after_an_exception(launch):
    done = launch(
        """
        import jax, jax.numpy as jnp, mpi4jax
        from mpi4py import MPI
        jax.jit(lambda x: mpi4jax.allreduce(x, op=MPI.SUM)[0])(jnp.ones(3))
        raise SystemExit(7)
        """
    )
    assert done.returncode == 7


def test_communicators_left_open(launch):
    # MPI_Finalize calls back for what the communicators carry, after Python is gone.
    done = launch(
        """
        import jax.numpy as jnp, mpi4jax
        from mpi4py import MPI
        comms = [MPI.COMM_WORLD, MPI.COMM_SELF, MPI.COMM_WORLD.Dup(), None]
        for comm in comms:
            mpi4jax.allreduce(jnp.ones(3), op=MPI.SUM, comm=comm)
        comms[2].Free()
        """,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_mpi_finalised_by_the_program(launch):
    done = launch(
        """
        import jax.numpy as jnp, mpi4jax
        from mpi4py import MPI
        mpi4jax.allreduce(jnp.ones(3), op=MPI.SUM)[0].block_until_ready()
        MPI.Finalize()
        """,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr


def test_calls_after_mpi_was_finalised(launch):
    """Fails if MPI is called then: it ends the program."""
    done = launch(
        """
        import jax, jax.numpy as jnp
        from mpi4jax import notoken as mpi
        from mpi4py import MPI

        @jax.jit
        def program(x):
            return mpi.allreduce(x, op=MPI.SUM)

        x = jnp.ones(3)
        program(x).block_until_ready()
        MPI.Finalize()
        try:
            program(x).block_until_ready()
        except ValueError as error:
            print(error)
        """,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr
    error = (
        "FAILED_PRECONDITION: MPI was finalised before: call mpi4jax's operations before "
        "MPI.Finalize()"
    )
    assert done.stdout.replace("\n", "") == error * 2
