"""An error of MPI's ends all ranks, or raises."""

import re

import pytest

NO_ROOM = """
    import jax, jax.numpy as jnp, numpy as np
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    message = np.ones(5, np.float32)
    if rank == size - 1:
        request = comm.Isend(message, 0)

    def program(x):
        # Of the others, nobody sends anything to rank 1.
        return mpi.recv(x, source=size - 1 if rank == 0 else 0, comm=comm)

    {call}
"""

CALLS = {
    "eager": "program(jnp.ones(3))",
    "jit": "jax.jit(program)(jnp.ones(3)).block_until_ready()",
    "not awaited": "jax.jit(program)(jnp.ones(3))",
}

LINE = r"r0 \| MPI_Recv returned error code \d+: (?s:.*)truncated(?s:.*)"
RECV = r"  in recv \(from {} with any tag, float32\[3\]\) on MPI.COMM_WORLD   "


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_abort(launch, call, ranks):
    # The other rank waits for a message that never comes: without the abort, a time-out.
    done = launch(NO_ROOM.format(call=call), ranks)
    assert done.returncode != 0
    # The last line says which call it was, and where it is.
    call_line = RECV.format(ranks - 1) + r"\S+\.py:14 in program\n"
    assert re.search(f"{LINE} - aborting\n{call_line}", done.stderr), done.stderr


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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_rank_that_is_not_there(launch, call, ranks):
    """The exception ends the process that has it, and the other one does not wait for it.

    Its text has the line that the original prints, for which its tests look.
    """
    done = launch(SEND_TO_NOBODY.format(call=call), ranks)
    assert done.returncode != 0
    assert re.search(
        r'(?s)program\.py", line 8, in program.*'
        r"ValueError: send got 100 for argument `dest`, expected a rank of the "
        rf"communicator \(0 to {ranks - 1}\) or MPI.PROC_NULL\n"
        r"MPI would refuse it: r0 \| MPI_Send returned error code \d+: .*rank",
        done.stderr,
    ), done.stderr


RAISES = """
    import jax, jax.numpy as jnp, numpy as np
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    comm = MPI.COMM_WORLD
    x = jnp.ones(3)
    message = np.ones(5, np.float32)
    received = jax.jit(lambda x: 2 * mpi.recv(x, 0, comm=comm))
    for call in lambda: mpi.recv(x, comm=comm), lambda: received(x).block_until_ready():
        request = comm.Isend(message, 0)
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
    for source, line in ("anyone", 10), (0, 9):
        call_line = RECV.format(source) + rf"\S+\.py:{line} in <lambda>\n"
        assert re.search(f"{LINE}\n{call_line}", done.stdout), done.stdout
    assert "aborting" not in done.stdout + done.stderr
    assert done.stdout.endswith("fine\n")


RECOVERS = """
    import jax, jax.numpy as jnp, numpy as np
    import mpi4jax
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    request = MPI.COMM_WORLD.Isend(np.ones(5, np.float32), 0)

    @jax.jit
    def bad(x):
        y = jnp.ones((1000, 1000)) + x.sum()
        for _ in range(5):
            y = y @ y / 1000  # so slow that the call returns before it fails
        x = mpi.allreduce(x + 0 * jnp.nan_to_num(y).sum(), MPI.SUM)
        mpi.recv(x, comm=MPI.COMM_WORLD)

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
    done = launch(RECOVERS, MPI4JAX_ON_ERROR="raise", MPI4JAX_DEBUG="1")
    assert done.returncode == 0, done.stderr
    assert "r0 | MPI_Recv returned error code" in done.stdout
    assert done.stdout.endswith("3.0\n")


GOES_ON = """
    import jax, jax.numpy as jnp, numpy as np
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    request = MPI.COMM_WORLD.Isend(np.ones(5, np.float32), 0)

    @jax.jit
    def bad(x):
        y = jnp.ones((1000, 1000)) + x.sum()
        for _ in range(5):
            y = y @ y / 1000
        x = mpi.allreduce(x + 0 * jnp.nan_to_num(y).sum(), MPI.SUM)
        mpi.recv(x, comm=MPI.COMM_WORLD)
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
    assert "r0 | MPI_Recv returned error code" in done.stdout


PLANS_THAT_DIFFER = """
    import jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import fft, halo, pencil

    comm = MPI.COMM_WORLD.Create_cart([2], [True])
    other = comm.Get_rank() == 1
    plan = {plan}
    x = jnp.ones({shape}, {dtype})
    plan.{method}(x).block_until_ready()
"""
TRANSFORMED = {"shape": "plan.layout.local_shape", "dtype": "complex", "method": "forward"}
EXCHANGED = {"shape": "(8, 4)", "dtype": "float", "method": "exchange"}


@pytest.mark.parametrize("is_checked", ["0", "1"])
@pytest.mark.parametrize(
    ("plan", "call"),
    [
        ("fft.Plan(pencil.Layout(comm, [8, 16 if other else 8], [0]))", TRANSFORMED),
        (
            "fft.Plan(pencil.Layout(comm, [8, 8], [0]), modes=[8, 8 - 4 * other])",
            TRANSFORMED,
        ),
        ("halo.Plan(comm, 1 + other, axes=[0])", EXCHANGED),
        ("halo.Plan(comm, axes=[int(other)])", EXCHANGED),
    ],
)
def test_plans_that_differ(launch, plan, call, is_checked):
    """The error names the plan and the line, and with checks what both ranks do."""
    done = launch(PLANS_THAT_DIFFER.format(plan=plan, **call), 2, MPI4JAX_CHECK=is_checked)
    assert done.returncode != 0
    name = f"{plan.partition('(')[0]}.{call['method']}"
    assert re.search(rf"\.py:10\s+\({name}\)\n", done.stderr), done.stderr
    both = r"rank (\d) sends .*, where rank (\d) receives "
    assert bool(re.search(both, done.stderr)) == (is_checked == "1"), done.stderr
