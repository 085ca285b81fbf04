"""`status=` of recv and sendrecv is filled when the call has run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi

MODES = pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])


@MODES
def test_sendrecv(mode, rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()
    x = jnp.ones(left + 2)

    def shift(y):
        return mpi.sendrecv(y, x, left, right, sendtag=40 + rank, status=status)

    received = mode(shift)(jnp.ones(rank + 2)).block_until_ready()
    assert received.shape == (left + 2,)
    assert status.Get_source() == left
    assert status.Get_tag() == 40 + left
    assert status.Get_count(MPI.FLOAT) == left + 2


@MODES
@pytest.mark.ranks(2)
def test_recv(mode, rank, size):
    if rank == 1:
        mpi.send(jnp.arange(4.0), 0, tag=9)
    if rank == 0:
        status = MPI.Status()
        received = mode(lambda x: mpi.recv(x, status=status))(jnp.zeros(6))
        np.testing.assert_array_equal(received[:4], np.arange(4.0))
        assert (status.Get_source(), status.Get_tag()) == (1, 9)
        assert status.Get_count(MPI.FLOAT) == 4


def test_jitted_call_fills_it_again(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()
    shift = jax.jit(lambda x: mpi.sendrecv(x, x, left, right, status=status))
    shift(jnp.ones(3)).block_until_ready()
    status.Set_source(99)
    shift(jnp.ones(3)).block_until_ready()
    assert status.Get_source() == left


def test_two_statuses_in_one_function(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second = MPI.Status(), MPI.Status()

    @jax.jit
    def there_and_back(x):
        x = mpi.sendrecv(x, x, left, right, status=first)
        return mpi.sendrecv(x, x, right, left, status=second)

    there_and_back(jnp.ones(3)).block_until_ready()
    assert (first.Get_source(), second.Get_source()) == (left, right)


def test_fresh_statuses_do_not_compile_again(rank):
    # A number that is not given back shows as one more compiled function per call.
    from mpi4jax._internal.mpi.handles import communicator

    programs = communicator("sendrecv", None).programs
    counts = []
    for _ in range(5):
        status = MPI.Status()
        mpi.sendrecv(jnp.ones(2), jnp.ones(2), rank, rank, status=status)
        assert status.Get_source() == rank
        counts.append(len(programs))
    assert len(set(counts)) == 1
