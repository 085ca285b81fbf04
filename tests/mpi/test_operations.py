"""Every operation, in every mode, against the value that it must give."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from every import over
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._internal.environment import settings
from mpi4jax._testing.cases import CASES, OPERATIONS
from mpi4jax._testing.modes import MODES, nonblocking

pytestmark = pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())


def mine(rank, shape=(3, 2), dtype=np.float32):
    """An array that differs from rank to rank and within itself."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape) + dtype(20 * rank)


def everyones(size, shape=(3, 2)):
    return np.stack([mine(r, shape) for r in range(size)])


def check(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@over(case for case in CASES.values() if case.is_linear)
def test_results(case, mode):
    for root in case.roots:
        rooted = case.replace(root=root)
        xs = rooted.arrays(mine, (3, 2))
        check(mode(rooted.call)(jnp.asarray(xs[rooted.rank])), rooted.result(xs))


def together(mode, cases, make, block):
    """Call several operations in one program, and compare their results."""
    xs = {case.name: case.arrays(make, block) for case in cases}

    def function(mine):
        results = [case.call(mine[case.name]) for case in cases]
        for case, result in zip(cases, results, strict=True):
            assert result.shape == case.result(xs[case.name]).shape
        return jnp.concatenate([result.ravel() for result in results])

    mine = {case.name: jnp.asarray(xs[case.name][case.rank]) for case in cases}
    expected = [case.result(xs[case.name]).ravel() for case in cases]
    ends = np.cumsum([result.size for result in expected])[:-1]
    results_by_case = np.split(np.asarray(mode(function)(mine)), ends)
    for case, actual, wanted in zip(cases, results_by_case, expected, strict=True):
        assert actual.dtype == wanted.dtype
        np.testing.assert_array_equal(actual, wanted, err_msg=case.name)


def cases_on(comm):
    """A case for each operation, on another communicator."""
    cases = [case.replace(comm=comm) for case in OPERATIONS.values()]
    return [case for case in cases if case.size >= case.least_size]


def test_other_operators(mode):
    together(mode, [case for case in CASES.values() if not case.is_linear], mine, (3, 2))


def test_scalars(mode):
    for dtype in (np.float32, np.int32):
        make = functools.partial(mine, dtype=dtype)
        together(mode, cases_on(None), make, ())


def test_empty_arrays(mode, size):
    together(mode, cases_on(None), mine, (0, 3))
    # Here what is sent has no rows, where above they have no elements.
    none = [0] * size

    def function(x):
        results = (
            mpi.allgatherv(x, none),
            mpi.alltoallv(x, none, none),
            mpi.gatherv(x, none, 0),
            mpi.scatterv(x, none, 0),
        )
        assert all(y.shape == (0, 3) for y in results)
        return jnp.concatenate(results)

    assert mode(function)(jnp.zeros((0, 3), jnp.float32)).shape == (0, 3)


def test_other_communicators(mode, rank, comm):
    half = comm.Split(rank % 2)

    def of_this_half(member, shape):
        return mine(member, shape) + 10 * (rank % 2)

    together(mode, cases_on(half), of_this_half, (3, 2))
    half.Free()
    together(mode, cases_on(MPI.COMM_SELF), lambda _, shape: mine(rank, shape), (2,))


def test_counts_of_any_type(mode, rank, size):
    """Rank r sends r + 1 rows to each."""
    sent, received = [rank + 1] * size, np.arange(1, size + 1)
    x = jnp.full((sum(sent), 2), rank, jnp.float32)
    expected = np.repeat(np.arange(size, dtype=np.float32), received)[:, None] * [1, 1]
    expected = expected.astype(np.float32)
    for counts in ((sent, tuple(received)), (np.array(sent), received)):
        check(mode(lambda x, counts=counts: mpi.alltoallv(x, *counts))(x), expected)


@pytest.mark.ranks(2)
def test_recv_from_any_source_with_any_tag(mode, rank, size):
    if mode is nonblocking and (settings.check or settings.staging_chunk):
        pytest.skip("a message has several parts, which may come from several processes")

    def function(x):
        if rank == 1:
            mpi.send(x, 0, tag=17)
        return mpi.recv(x) if rank == 0 else x

    check(mode(function)(jnp.asarray(mine(rank))), mine(1 if rank == 0 else rank))


def test_nothing_comes_from_nowhere(mode, rank):
    x, template = jnp.asarray(mine(rank)), jnp.full((4,), 5.0, jnp.float32)
    received = mode(lambda x: mpi.recv(x, MPI.PROC_NULL))(template)
    check(received, template)
    received = mode(lambda x: mpi.sendrecv(x, template, MPI.PROC_NULL, MPI.PROC_NULL))(x)
    check(received, template)


def test_operand_is_left_alone(mode, rank, size):
    # The result may take the operand's memory, but only if nobody needs that any more.
    x = jnp.asarray(mine(rank))

    def function(x):
        return mpi.allreduce(x, MPI.SUM) + 1000 * x

    check(mode(function)(x), everyones(size).sum(0) + 1000 * mine(rank))
    check(x, mine(rank))


def test_user_made_operator(mode, rank, size):
    def largest_by_magnitude(a, b, datatype):
        a, b = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
        b[...] = np.where(abs(a) > abs(b), a, b)

    op = MPI.Op.Create(largest_by_magnitude, commute=True)
    x = jnp.asarray(mine(rank) * (-1) ** rank)
    result = mode(lambda x: mpi.allreduce(x, op))(x).block_until_ready()
    check(result, mine(size - 1) * (-1) ** (size - 1))
    op.Free()


def test_row_major_layout(mode, rank, size):
    # XLA may want to keep a transposed array in column-major order.
    x = jnp.asarray(mine(rank, (2, 3)))
    expected = everyones(size, (2, 3)).transpose(0, 2, 1) * 2
    check(mode(lambda x: mpi.allgather(x.T * 2))(x), expected)


def test_jit_of_device_array_and_numpy_array(mode, rank, size):
    x = np.ones((2, 2), np.float32)
    check(mode(lambda x: mpi.allreduce(jnp.asarray(x), MPI.SUM))(x), x * size)
