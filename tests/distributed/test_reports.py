"""What is recorded of operations in programs over all ranks, and MPI4JAX_CHECK in them."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

from mpi4jax import diagnostics
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.call_sites import relative_path
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
NULL = MPI.PROC_NULL
FILE = relative_path(__file__)

pytestmark = [
    pytest.mark.ranks(2),
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1"),
]


@pytest.fixture
def row(mesh, spread):
    """An array with a row of three elements on each rank."""
    return spread(np.ones((SIZE, 3), np.float32), mesh, "i")


def line_of(function, text):
    """The line of a function that has a text in it, as reports name it."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = (n for n, line in enumerate(lines) if text in line)
    return f"{FILE}:{first + offset} in {function.__name__}"


def turn(_, x):
    rank = lax.axis_index("i")
    x = mpi.sendrecv(x, x, (rank - 1) % SIZE, (rank + 1) % SIZE, sendtag=7)
    return lax.psum(x, "i")


def body(x):
    return mpi.scan(lax.fori_loop(0, 3, turn, x), MPI.SUM)


def test_recent_calls(over, row):
    """In order, with the ranks that the program has computed, and JAX's own beside them."""
    program = over(body, "i")
    for _ in range(2):  # JAX makes its communicator in the first one.
        jax.block_until_ready(program(row))
    *turns, last = diagnostics.recent()[-7:]
    shift = "sendrecv", "COMM_WORLD", line_of(turn, "mpi.sendrecv")
    psum = "allreduce", "JAX's communicator of all ranks", None
    rows = [
        (call.operation, call.communicator, call.line and call.line.split(" (")[0])
        for call in turns
    ]
    assert rows == [shift, psum] * 3
    assert turns[0].arguments == (
        f"to {(RANK + 1) % SIZE} with tag 7",
        f"from {(RANK - 1) % SIZE} with any tag",
        "float32[3]",
    )
    assert (last.operation, last.line) == ("scan", line_of(body, "mpi.scan"))


def test_profile(over, row):
    program = over(body, "i")
    jax.block_until_ready(program(row))
    with diagnostics.profile(quiet=True) as profile:
        for _ in range(2):
            jax.block_until_ready(program(row))
    rows = {
        (row.operation, row.line.split(" (")[0]): (row.calls, row.bytes)
        for row in profile.rows
    }
    assert rows == {
        ("sendrecv", line_of(turn, "mpi.sendrecv")): (6 * SIZE, 72 * SIZE),
        ("allreduce", ""): (6 * SIZE, 72 * SIZE),
        ("scan", line_of(body, "mpi.scan")): (2 * SIZE, 24 * SIZE),
    }
    # Messages are counted for the ranks that the program has computed.
    expected = np.zeros((SIZE, SIZE), int)
    for sender in range(SIZE):
        expected[sender, (sender + 1) % SIZE] += 72
    np.testing.assert_array_equal(profile.traffic, expected)


def other_root(x):
    return mpi.bcast(x, jnp.minimum(lax.axis_index("i"), 1))


def summed(x):
    return mpi.allreduce(x, MPI.SUM)


def scanned(x):
    return mpi.scan(x, MPI.SUM)


def shortened(x):
    return x.at[:, 1:].set(mpi.allreduce(x[:, 1:], MPI.SUM))


def converted(x):
    return mpi.allreduce(x.astype(jnp.int32), MPI.SUM).astype(x.dtype)


def on_first(first, others):
    """A program that calls one function on rank 0, and another one elsewhere."""
    return lambda x: lax.cond(lax.axis_index("i") == 0, first, others, x)


# Each program, the call of rank 0 and that of the others, with their functions, and what is
# found.
COLLECTIVES = {
    "roots": (
        other_root,
        ("bcast", "root 0, float32[3]", other_root),
        ("bcast", "root 1, float32[3]", other_root),
        "they gave different roots (0 and 1).",
    ),
    "operations": (
        on_first(summed, scanned),
        ("allreduce", "SUM, float32[3]", summed),
        ("scan", "SUM, float32[3]", scanned),
        "they called different operations.",
    ),
    "shapes": (
        on_first(summed, shortened),
        ("allreduce", "SUM, float32[3]", summed),
        ("allreduce", "SUM, float32[2]", shortened),
        "they gave different sizes (3 and 2).",
    ),
    "types": (
        on_first(summed, converted),
        ("allreduce", "SUM, float32[3]", summed),
        ("allreduce", "SUM, int32[3]", converted),
        "they gave different types (float32 and int32).",
    ),
}


@pytest.mark.usefixtures("compare_calls")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective_calls_that_do_not_fit(over, row, name):
    """The program is the same on all ranks, and what it does follows from the rank."""
    program, *calls, finding = COLLECTIVES[name]
    with pytest.raises(Exception, match="MPI4JAX_CHECK") as raised:
        jax.block_until_ready(over(program, "i")(row))
    report = str(raised.value)
    for operation, arguments, function in calls:
        assert f"({arguments}) on COMM_WORLD" in report
        assert f"in {operation} #" in report
        assert line_of(function, "mpi.") in report
    assert finding in report
    assert COMM.allgather(RANK) == list(range(SIZE))


@pytest.mark.usefixtures("compare_calls")
def test_a_message_that_does_not_fit(over, row):
    """From the rank that the program has computed, with the lines of both ranks."""

    def message(x):
        rank = lax.axis_index("i")
        mpi.send(x[:, 1:], jnp.where(rank == 0, 1, NULL), tag=7)
        return mpi.recv(x, jnp.where(rank == 1, 0, NULL), tag=7)

    program = over(message, "i")
    if RANK != 1:
        jax.block_until_ready(program(row))
        return
    with pytest.raises(Exception, match="MPI4JAX_CHECK") as raised:
        jax.block_until_ready(program(row))
    report = str(raised.value)
    assert "rank  0   sends float32[2] to 1 with tag 7 on COMM_WORLD" in report
    assert "rank  1   in recv (from 0 with tag 7, float32[3]) on COMM_WORLD" in report
    assert line_of(message, "mpi.send") in report
    assert line_of(message, "mpi.recv") in report
