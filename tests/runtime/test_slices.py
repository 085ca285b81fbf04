"""Rows of arrays, whose addresses XLA hands to calls from JAX 0.12 on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE

pytestmark = pytest.mark.usefixtures("way")


def of(rank):
    """Rows of 256 bytes, of which XLA hands over the addresses."""
    return np.arange(6 * 64, dtype=np.float32).reshape(6, 64) + np.float32(1000 * rank)


def shift(x):
    return mpi.sendrecv(x, x, LEFT, RIGHT)


def add(x):
    return mpi.allreduce(x, MPI.SUM)


def changed(array, rows, values):
    array = array.copy()
    array[rows] = values
    return array


PARTS = [
    pytest.param(slice(1, 2), slice(1, 2), id="the same rows"),
    pytest.param(slice(2, 3), slice(0, 1), id="other rows"),
    pytest.param(slice(1, 4), slice(0, 3), id="overlapping, backwards"),
    pytest.param(slice(0, 4), slice(1, 5), id="overlapping, forwards"),
]


@pytest.mark.parametrize(("source", "target"), PARTS)
def test_sent_and_received(source, target):
    program = jax.jit(lambda x: (y := x + 1).at[target].set(shift(y[source])))
    result = program(jax.device_put(of(RANK)))
    expected = changed(of(RANK) + 1, target, of(LEFT)[source] + 1)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("source", "target"), PARTS)
def test_reduced(source, target):
    program = jax.jit(lambda x: (y := x + 1).at[target].set(add(y[source])))
    result = program(jax.device_put(of(RANK)))
    total = sum(of(rank)[source] + 1 for rank in range(SIZE))
    np.testing.assert_array_equal(result, changed(of(RANK) + 1, target, total))


@pytest.mark.parametrize(("source", "target"), PARTS)
def test_between_all(source, target):
    """An operation that MPI can't do in place."""
    rows = slice(0, SIZE), slice(0, SIZE)
    if source != target:
        rows = slice(1, SIZE + 1), rows[1]
    program = jax.jit(lambda x: (y := x + 1).at[rows[1]].set(mpi.alltoall(y[rows[0]])))
    result = program(jax.device_put(of(RANK)))
    sent = [of(rank)[rows[0]][RANK] + 1 for rank in range(SIZE)]
    np.testing.assert_array_equal(result, changed(of(RANK) + 1, rows[1], sent))


def test_each_row_in_a_loop():
    def step(row, x):
        return x.at[row].set(shift(x[row]))

    result = jax.jit(lambda x: lax.fori_loop(0, 6, step, x))(jax.device_put(of(RANK)))
    np.testing.assert_array_equal(result, of(LEFT))


def test_rows_that_move_in_a_loop():
    """Each turn reads what the last one has written."""

    def step(row, x):
        rows = shift(lax.dynamic_slice_in_dim(x, row + 1, 2))
        return lax.dynamic_update_slice_in_dim(x, rows, row, 0)

    result = jax.jit(lambda x: lax.fori_loop(0, 4, step, x))(jax.device_put(of(RANK)))
    arrays = [of(rank) for rank in range(SIZE)]
    for row in range(4):
        sent = [array[row + 1 : row + 3].copy() for array in arrays]
        for rank, array in enumerate(arrays):
            array[row : row + 2] = sent[(rank - 1) % SIZE]
    np.testing.assert_array_equal(result, arrays[RANK])


def test_rows_in_flight():
    def function(x):
        received = mpi4jax.irecv(x[0], LEFT, tag=2)
        mpi4jax.wait(mpi4jax.isend(x[3], RIGHT, tag=2))
        return x.at[1].set(mpi4jax.wait(received))

    result = jax.jit(function)(jax.device_put(of(RANK)))
    np.testing.assert_array_equal(result, changed(of(RANK), 1, of(LEFT)[3]))


def test_rows_while_computing():
    """The computation meanwhile uses the row that is sent."""

    def function(x):
        row = x[2]
        return mpi4jax.overlap(lambda: shift(row), during=lambda: row + jnp.float32(1))

    received, computed = jax.jit(function)(jax.device_put(of(RANK)))
    np.testing.assert_array_equal(received, of(LEFT)[2])
    np.testing.assert_array_equal(computed, of(RANK)[2] + 1)
