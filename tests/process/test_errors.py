"""An error of MPI's ends all ranks, or raises."""

import re

import pytest

SEND_TO_NOBODY = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    def program(x):
        if MPI.COMM_WORLD.Get_rank() == 0:
            mpi.send(x, dest=100)
        return mpi.recv(x, source=0) if MPI.COMM_WORLD.Get_rank() else x

    {call}
"""

CALLS = {
    "eager": "program(jnp.ones(3))",
    "jit": "jax.jit(program)(jnp.ones(3)).block_until_ready()",
    "not awaited": "jax.jit(program)(jnp.ones(3))",
}

LINE = r"r0 \| MPI_Send returned error code \d+: (?s:.*)[Ii]nvalid rank(?s:.*)"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_abort(launch, call, ranks):
    # The other rank waits for a message that never comes: without the abort, a time-out.
    done = launch(SEND_TO_NOBODY.format(call=call), ranks)
    assert done.returncode != 0
    # The second line says which call it was.
    send = r"  in send \(to 100 with tag 0, float32\[3\]\) on COMM_WORLD   "
    call_line = send + r"\S+\.py:8 in program"
    assert re.search(f"{LINE} - aborting\n{call_line}", done.stderr), done.stderr


RAISES = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    x = jnp.ones(3)
    sent = jax.jit(lambda x: (mpi.send(2 * x, 101), x + 1)[1])
    for call in lambda: mpi.send(x, 100), lambda: sent(x).block_until_ready():
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error)
    # The process goes on, and so does MPI.
    assert mpi.allreduce(x, MPI.SUM).sum() == 3
    print("fine")
"""


def test_raise(launch):
    done = launch(RAISES, MPI4JAX_ON_ERROR="raise")
    assert done.returncode == 0, done.stderr
    for dest, line in (100, "8 in <lambda>"), (101, "7 in <lambda>"):
        assert re.search(
            r"r0 \| MPI_Send returned error code \d+: (?s:.*)rank(?s:.*)\n"
            rf"  in send \(to {dest} with tag 0, float32\[3\]\) on COMM_WORLD   \S+:{line}",
            done.stdout,
        )
    assert "aborting" not in done.stdout + done.stderr
    assert done.stdout.endswith("fine\n")


RECOVERS = """
    import jax, jax.numpy as jnp
    import mpi4jax
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    @jax.jit
    def bad(x):
        y = jnp.ones((1000, 1000)) + x.sum()
        for _ in range(5):
            y = y @ y / 1000  # so slow that the call returns before it fails
        mpi.send(x + 0 * jnp.nan_to_num(y).sum(), 100)

    good = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM))
    token = mpi4jax.barrier()
    good(jnp.ones(3))
    bad(jnp.ones(3))
    try:
        token.block_until_ready()
    except Exception as error:
        print(error)
    print(good(jnp.ones(3)).sum())
"""


def test_going_on_after_an_error(launch):
    # JAX hands the failed token of one program to the next, which then fails unseen.
    done = launch(RECOVERS, MPI4JAX_ON_ERROR="raise")
    assert done.returncode == 0, done.stderr
    assert "r0 | MPI_Send returned error code" in done.stdout
    assert done.stdout.endswith("3.0\n")


GOES_ON = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    @jax.jit
    def bad(x):
        y = jnp.ones((1000, 1000)) + x.sum()
        for _ in range(5):
            y = y @ y / 1000
        mpi.send(x + 0 * jnp.nan_to_num(y).sum(), 100)
        return x + 1

    good = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM))
    good(jnp.ones(3))
    failed = bad(jnp.ones(3))
    print(good(jnp.ones(3)).sum())
    try:
        failed.block_until_ready()
    except Exception as error:
        print(error)
"""


def test_an_error_stays_with_its_results(launch):
    """A program with results has no token by which it could spoil the next one."""
    done = launch(GOES_ON, MPI4JAX_ON_ERROR="raise")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3.0\n")
    assert "r0 | MPI_Send returned error code" in done.stdout
