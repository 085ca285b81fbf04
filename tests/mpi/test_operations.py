"""Every operation, in every mode, against the value that it must give."""

import jax.numpy as jnp
import numpy as np
import pytest
from modes import MODES, ring
from mpi4py import MPI

from mpi4jax import notoken as mpi

pytestmark = pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())


def mine(rank, shape=(3, 2)):
    """An array that differs from rank to rank and within itself."""
    return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) + 10 * rank


def everyones(size, shape=(3, 2)):
    return np.stack([mine(r, shape) for r in range(size)])


def check(actual, expected):
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)


def counts(size):
    """Rows of each process: 1, 2, 0, 1, ..."""
    return [(r + 1) % 3 for r in range(size)]


def rows_of(rank, count):
    return mine(rank, (count, 2))


def everyones_rows(size):
    return np.concatenate([rows_of(r, count) for r, count in enumerate(counts(size))])


def test_allgather(mode, rank, size):
    check(mode(mpi.allgather)(mine(rank)), everyones(size))


def test_allgatherv(mode, rank, size):
    x = rows_of(rank, counts(size)[rank])
    check(mode(lambda x: mpi.allgatherv(x, counts(size)))(x), everyones_rows(size))


@pytest.mark.parametrize(
    ("op", "reduced"),
    [
        (MPI.SUM, np.sum),
        (MPI.PROD, np.prod),
        (MPI.MAX, np.max),
        (MPI.MIN, np.min),
    ],
    ids=["SUM", "PROD", "MAX", "MIN"],
)
def test_allreduce(mode, rank, size, op, reduced):
    result = mode(lambda x: mpi.allreduce(x, op=op))(mine(rank))
    check(result, reduced(everyones(size), axis=0))


def test_alltoall(mode, rank, size):
    # Element [i] on rank r says who sends it and to whom: 10 r + i.
    x = jnp.arange(size, dtype=jnp.float32) + 10 * rank
    check(mode(mpi.alltoall)(x), 10 * np.arange(size) + rank)


def test_alltoall_of_blocks(mode, rank, size):
    x = jnp.broadcast_to(
        (jnp.arange(size, dtype=jnp.float32) + 10 * rank)[:, None, None], (size, 3, 2)
    )
    expected = (10 * np.arange(size) + rank)[:, None, None] * np.ones((size, 3, 2))
    check(mode(mpi.alltoall)(x), expected)


def test_alltoallv(mode, rank, size):
    # Rank r sends 0, 1 or 2 rows to rank s. A row says who sends it, and to whom.
    table = [[(r - s + 1) % 3 for s in range(size)] for r in range(size)]
    sent, received = table[rank], [row[rank] for row in table]
    x = jnp.repeat(10 * rank + jnp.arange(size, dtype=jnp.float32), np.array(sent))
    expected = np.repeat(10 * np.arange(size) + rank, received)
    check(mode(lambda x: mpi.alltoallv(x, sent, received))(x), expected)
    blocks = jnp.stack([x, -x], axis=1)
    result = mode(lambda x: mpi.alltoallv(x, np.array(sent), tuple(received)))(blocks)
    check(result, np.stack([expected, -expected], axis=1))


def test_barrier(mode, rank):
    def function(x):
        mpi.barrier()
        return x + 1

    check(mode(function)(mine(rank)), mine(rank) + 1)


def roots(size):
    return {0, size - 1}


def test_bcast(mode, rank, size):
    for root in roots(size):
        result = mode(lambda x, root=root: mpi.bcast(x, root))(mine(rank))
        check(result, mine(root))


@pytest.mark.parametrize(
    ("op", "reduced", "of_nothing"),
    [
        (MPI.SUM, np.sum, 0),
        (MPI.PROD, np.prod, 1),
        (MPI.MAX, np.max, -np.inf),
        (MPI.MIN, np.min, np.inf),
    ],
    ids=["SUM", "PROD", "MAX", "MIN"],
)
def test_exscan(mode, rank, size, op, reduced, of_nothing):
    expected = reduced(everyones(size)[:rank], axis=0, initial=of_nothing)
    check(mode(lambda x: mpi.exscan(x, op))(mine(rank)), expected)


def test_gather(mode, rank, size):
    for root in roots(size):
        result = mode(lambda x, root=root: mpi.gather(x, root))(mine(rank))
        check(result, everyones(size) if rank == root else mine(rank))


def test_gatherv(mode, rank, size):
    x = rows_of(rank, counts(size)[rank])
    for root in roots(size):
        result = mode(lambda x, root=root: mpi.gatherv(x, counts(size), root))(x)
        check(result, everyones_rows(size) if rank == root else x)


def test_reduce(mode, rank, size):
    for root in roots(size):
        result = mode(lambda x, root=root: mpi.reduce(x, MPI.SUM, root))(mine(rank))
        check(result, everyones(size).sum(0) if rank == root else mine(rank))


def test_reduce_scatter(mode, rank, size):
    x = mine(rank, (size, 3, 2))
    result = mode(lambda x: mpi.reduce_scatter(x, MPI.SUM))(x)
    check(result, everyones(size, (size, 3, 2)).sum(0)[rank])
    check(
        mode(lambda x: mpi.reduce_scatter(x, MPI.MAX))(x),
        mine(size - 1, (size, 3, 2))[rank],
    )


def test_scan(mode, rank, size):
    result = mode(lambda x: mpi.scan(x, MPI.SUM))(mine(rank))
    check(result, everyones(size)[: rank + 1].sum(0))


def test_scatter(mode, rank, size):
    for root in roots(size):
        x = mine(7, (size, 3, 2)) if rank == root else jnp.zeros((3, 2), jnp.float32)
        result = mode(lambda x, root=root: mpi.scatter(x, root))(x)
        check(result, mine(7, (size, 3, 2))[rank])


def test_scatterv(mode, rank, size):
    sent = mine(7, (sum(counts(size)), 2))
    expected = np.split(sent, np.cumsum(counts(size)))[rank]
    for root in roots(size):
        x = sent if rank == root else jnp.zeros_like(expected)
        result = mode(lambda x, root=root: mpi.scatterv(x, counts(size), root))(x)
        check(result, expected)


def test_sendrecv(mode, rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size

    def shift(x):
        return mpi.sendrecv(x, jnp.zeros_like(x), source=left, dest=right)

    check(mode(shift)(mine(rank)), mine(left))


def test_sendrecv_of_unequal_shapes(mode, rank, size):
    # Rank r sends r + 1 elements.
    right, left = (rank + 1) % size, (rank - 1) % size
    template = jnp.zeros(left + 1, jnp.float32)

    def shift(x):
        return mpi.sendrecv(x, template, left, right, sendtag=3, recvtag=3)

    check(mode(shift)(jnp.arange(rank + 1.0)), np.arange(left + 1.0))


@pytest.mark.ranks(2)
def test_send_and_recv(mode, rank, size):
    check(mode(ring)(mine(rank)), mine((rank - 1) % size))


@pytest.mark.ranks(2)
def test_recv_from_any_source_with_any_tag(mode, rank, size):
    def function(x):
        if rank == 1:
            mpi.send(x, 0, tag=17)
        return mpi.recv(x) if rank == 0 else x

    check(mode(function)(mine(rank)), mine(1 if rank == 0 else rank))


def test_nothing_comes_from_nowhere(mode, rank):
    x, template = mine(rank), jnp.full((4,), 5.0, jnp.float32)
    received = mode(lambda x: mpi.recv(x, MPI.PROC_NULL))(template)
    check(received, template)
    received = mode(lambda x: mpi.sendrecv(x, template, MPI.PROC_NULL, MPI.PROC_NULL))(x)
    check(received, template)


def test_operand_is_left_alone(mode, rank, size):
    # The result may take the operand's memory, but only if nobody needs that any more.
    x = mine(rank)

    def function(x):
        return mpi.allreduce(x, MPI.SUM) + 1000 * x

    check(mode(function)(x), everyones(size).sum(0) + 1000 * np.asarray(mine(rank)))
    check(x, mine(rank))


def test_empty_arrays(mode, rank, size):
    none = [0] * size

    def function(x):
        assert mpi.allgather(x).shape == (size, 0, 3)
        results = (
            mpi.allgatherv(x, none),
            mpi.allreduce(x, MPI.SUM),
            mpi.alltoallv(x, none, none),
            mpi.bcast(x, 0),
            mpi.exscan(x, MPI.SUM),
            mpi.gatherv(x, none, 0),
            mpi.reduce_scatter(jnp.stack([x] * size), MPI.SUM),
            mpi.scatterv(x, none, 0),
            mpi.sendrecv(x, x, rank, rank),
        )
        assert all(y.shape == (0, 3) for y in results)
        return jnp.concatenate(results)

    assert mode(function)(jnp.zeros((0, 3), jnp.float32)).shape == (0, 3)


def test_scalars(mode, rank, size):
    assert mode(lambda x: mpi.allreduce(x, MPI.SUM))(jnp.float32(rank)) == sum(range(size))
    gathered = mode(mpi.allgather)(jnp.int32(rank))
    np.testing.assert_array_equal(gathered, np.arange(size))
    assert mode(lambda x: mpi.exscan(x, MPI.SUM))(jnp.int32(1)) == rank
    total = mode(lambda x: mpi.reduce_scatter(x, MPI.SUM))(jnp.arange(size))
    assert total == rank * size


def test_user_made_operator(mode, rank, size):
    def largest_by_magnitude(a, b, datatype):
        a, b = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
        b[...] = np.where(abs(a) > abs(b), a, b)

    op = MPI.Op.Create(largest_by_magnitude, commute=True)
    x = mine(rank) * (-1) ** rank
    result = mode(lambda x: mpi.allreduce(x, op))(x).block_until_ready()
    check(result, mine(size - 1) * (-1) ** (size - 1))
    op.Free()


def test_other_communicators(mode, rank, size, comm):
    half = comm.Split(rank % 2)
    members = range(rank % 2, size, 2)
    result = mode(lambda x: mpi.allreduce(x, MPI.SUM, comm=half))(mine(rank))
    check(result, sum(np.asarray(mine(r)) for r in members))
    assert (
        mode(lambda x: mpi.allreduce(x, MPI.SUM, comm=MPI.COMM_SELF))(jnp.float32(rank))
        == rank
    )
    half.Free()


def test_row_major_layout(mode, rank, size):
    # XLA may want to keep a transposed array in column-major order.
    x = mine(rank, (2, 3))
    expected = everyones(size, (2, 3)).transpose(0, 2, 1) * 2
    check(mode(lambda x: mpi.allgather(x.T * 2))(x), expected)


def test_jit_of_device_array_and_numpy_array(mode, rank, size):
    x = np.ones((2, 2), np.float32)
    check(mode(lambda x: mpi.allreduce(jnp.asarray(x), MPI.SUM))(x), x * size)
