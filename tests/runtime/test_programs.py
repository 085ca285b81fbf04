"""Programs of several calls: loops, branches, slices, results in later programs.

Streams run late: who does not wait for a copy finds what was there before.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE

pytestmark = pytest.mark.usefixtures("way")


def put(array):
    return jax.device_put(np.asarray(array))


def of(rank, shape=(4, 3)):
    """The array of a rank."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(
        100 * rank
    )


def to_the_right(x):
    return mpi.sendrecv(x, x, LEFT, RIGHT)


def test_a_loop_of_sums():
    def turn(_, x):
        return mpi.allreduce(x, MPI.SUM) / SIZE

    result = jax.jit(lambda x: jax.lax.fori_loop(0, 7, turn, x))(put(of(RANK)))
    mean = sum(of(rank) for rank in range(SIZE)) / SIZE
    np.testing.assert_allclose(result, mean, rtol=1e-5)


def test_a_ring_in_a_scan():
    """Each turn gives what came, which is another rank's array in each."""

    def turn(x, _):
        x = to_the_right(x)
        return x, x

    _, rows = jax.jit(lambda x: jax.lax.scan(turn, x, None, length=5))(put(of(RANK)))
    expected = [of((RANK - 1 - step) % SIZE) for step in range(5)]
    np.testing.assert_array_equal(rows, expected)


def test_a_loop_that_ends_by_a_sum():
    """All ranks leave it in the same turn, as the condition communicates."""

    def goes_on(state):
        return mpi.allreduce(state[0], MPI.MAX) < 3 + SIZE

    def turn(state):
        return state[0] + 1, to_the_right(state[1])

    start = put(np.float32(RANK)), put(of(RANK))
    count, x = jax.jit(lambda s: jax.lax.while_loop(goes_on, turn, s))(start)
    turns = 4
    assert count == RANK + turns
    np.testing.assert_array_equal(x, of((RANK - turns) % SIZE))


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_branch(is_taken):
    def exchanged(x):
        return mpi.allreduce(to_the_right(x), MPI.SUM)

    branch = jax.jit(lambda p, x: jax.lax.cond(p, exchanged, lambda x: x, x))
    result = branch(put(np.bool_(is_taken)), put(of(RANK)))
    expected = sum(map(of, range(SIZE))) if is_taken else of(RANK)
    np.testing.assert_array_equal(result, expected)


def test_rows():
    """A contiguous part of an array is sent, and what comes becomes one."""

    def program(x):
        row = mpi.sendrecv(x[0], x[3], LEFT, RIGHT)
        return x.at[3].set(row)

    expected = of(RANK)
    expected[3] = of((RANK - 1) % SIZE)[0]
    np.testing.assert_array_equal(jax.jit(program)(put(of(RANK))), expected)


def test_results_in_later_programs():
    """Nobody waits for any result before the last one."""
    shift = jax.jit(to_the_right)
    add = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM) - x)
    x = put(of(RANK))
    for _ in range(6):
        x = add(shift(x))
    expected = [of(rank) for rank in range(SIZE)]
    for _ in range(6):
        expected = [expected[(rank - 1) % SIZE] for rank in range(SIZE)]
        total = sum(expected)
        expected = [total - array for array in expected]
    np.testing.assert_allclose(x, expected[RANK], rtol=1e-4)


def test_many_arrays_come_and_go():
    """Memory that is freed is poisoned, so an array that was freed too early would show."""
    send = jax.jit(lambda x: mpi.sendrecv(x, x, LEFT, RIGHT))
    results = []
    for index in range(60):
        results.append(send(put(np.full(1000 + index, RANK * 1000 + index, np.float32))))
        if index % 3 == 2:
            del results[-2]
    for result in results:
        index = result.size - 1000
        np.testing.assert_array_equal(result, np.float32((RANK - 1) % SIZE * 1000 + index))


def test_messages_in_a_row():
    """Nothing waits for the stream between two of them; each has memory of its own.

    A buffer that is used again before the stream has copied it has the next message.
    """

    def program(x):
        requests = [mpi4jax.isend(x + tag, RIGHT, tag=tag) for tag in range(8)]
        results = [mpi.recv(x, LEFT, tag=tag) for tag in range(8)]
        for request in requests:
            mpi4jax.wait(request)
        return results

    results = jax.jit(program)(put(of(RANK)))
    for tag, result in enumerate(results):
        np.testing.assert_array_equal(result, of(LEFT) + tag)


def test_a_donated_array():
    """The result takes the operand's memory, which the copies up and down then share."""
    add = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM), donate_argnums=0)
    x = put(of(RANK))
    for _ in range(4):
        x = add(x)
    expected = sum(map(of, range(SIZE))) * np.float32(SIZE**3)
    np.testing.assert_allclose(x, expected, rtol=1e-5)


def test_two_communicators():
    """Calls on two communicators, in one program, by turns."""
    other, alone = COMM.Dup(), MPI.COMM_SELF

    def turn(_, x):
        x = mpi.sendrecv(x, x, LEFT, RIGHT, comm=other)
        x = mpi.allreduce(x, MPI.SUM, comm=alone)
        return mpi.bcast(x, 0, comm=COMM)

    result = jax.jit(lambda x: jax.lax.fori_loop(0, 3, turn, x))(put(of(RANK)))
    # The root of each turn has what its left neighbor had before.
    expected = of((0 - 1) % SIZE)
    np.testing.assert_array_equal(result, expected)
    jax.block_until_ready(result)
    other.Free()


def test_all_types():
    types = (np.int8, np.uint16, np.float16, np.float32, np.complex64, jnp.bfloat16)
    for dtype in types:
        x = of(RANK).astype(dtype)
        np.testing.assert_array_equal(jax.jit(to_the_right)(put(x)), of(LEFT).astype(dtype))


def test_large_and_empty():
    """Some MiB, which stay in device memory of their own, and nothing at all."""
    # Not in a million pieces.
    count = 1 << (10 if "MPI4JAX_STAGING_CHUNK" in os.environ else 20)
    large = np.arange(count, dtype=np.float32) + np.float32(RANK)
    shift = jax.jit(lambda x, y: (to_the_right(x), to_the_right(y)))
    result, empty = shift(put(large), put(np.zeros((0, 3), np.float32)))
    np.testing.assert_array_equal(result, large - RANK + (RANK - 1) % SIZE)
    assert empty.shape == (0, 3)
