"""Arrays of more elements than an int counts, or so the core thinks.

Beyond its limit are MPI's functions for large counts or, where it has none (Open MPI 5),
data types made for the call, and reductions in chunks.
"""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import ring
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax import notoken as mpi

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
N = 5

#: Rows of each process, rows that process r sends to process s and gets from it.
COUNTS = [2 - rank % 3 for rank in range(SIZE)]
TABLE = [[(r + s + 1) % 3 for s in range(SIZE)] for r in range(SIZE)]
#: The largest count or displacement in the table.
ROWS = max(2, *(sum(row[:-1]) for row in TABLE))

LIMITS = [1, 2, 7]


@pytest.fixture(params=[True, False], ids=["large", "int"])
def counting(request):
    """Sets the limit, and says whether MPI is to be called for more at once."""

    def set_limit(limit):
        _core.set_count_limit(limit, request.param)
        return request.param and MPI.Get_version() >= (4, 0)

    yield set_limit
    mpi.barrier(comm=MPI.COMM_SELF)  # ordered behind the last call
    _core.set_count_limit(2**31 - 1, True)


def part(rank, *shape):
    """Small numbers that differ from rank to rank."""
    return np.random.default_rng(rank).integers(-9, 10, shape).astype(np.float32)


def everyones(*shape):
    return np.stack([part(rank, *shape) for rank in range(SIZE)])


def rows(rank, count):
    return part(rank, count, N)


def at(root, value, other):
    return value if root == RANK else other


def to_me(rank):
    """The rows that a process sends to this one."""
    ends = np.cumsum(TABLE[rank])
    return rows(rank, ends[-1])[ends[RANK] - TABLE[rank][RANK] : ends[RANK]]


def barrier(x):
    mpi.barrier()
    return x


#: The operations that move arrays: the call, what is sent, what arrives, and the log.
ALL_ROWS = np.concatenate([rows(rank, count) for rank, count in enumerate(COUNTS)])
MOVES = {
    "allgather": (mpi.allgather, part(RANK, N), everyones(N), "Allgather"),
    "alltoall": (
        mpi.alltoall,
        part(RANK, SIZE, N),
        everyones(SIZE, N)[:, RANK],
        "Alltoall",
    ),
    "barrier": (barrier, part(RANK, N), part(RANK, N), "Barrier"),
    "bcast": (lambda x: mpi.bcast(x, LAST), part(RANK, N), part(LAST, N), "Bcast"),
    "gather": (
        lambda x: mpi.gather(x, 0),
        part(RANK, N),
        at(0, everyones(N), part(RANK, N)),
        "Gather",
    ),
    "scatter": (
        lambda x: mpi.scatter(x, LAST),
        at(LAST, part(LAST, SIZE, N), part(RANK, N)),
        part(LAST, SIZE, N)[RANK],
        "Scatter",
    ),
    "sendrecv": (
        lambda x: mpi.sendrecv(x, x, LEFT, RIGHT),
        part(RANK, N),
        part(LEFT, N),
        "Sendrecv",
    ),
    "allgatherv": (
        lambda x: mpi.allgatherv(x, COUNTS),
        rows(RANK, COUNTS[RANK]),
        ALL_ROWS,
        "Allgatherv",
    ),
    "alltoallv": (
        lambda x: mpi.alltoallv(x, TABLE[RANK], TABLE[RANK]),
        rows(RANK, sum(TABLE[RANK])),
        np.concatenate([to_me(rank) for rank in range(SIZE)]),
        "Alltoallv",
    ),
    "gatherv": (
        lambda x: mpi.gatherv(x, COUNTS, LAST),
        rows(RANK, COUNTS[RANK]),
        at(LAST, ALL_ROWS, rows(RANK, COUNTS[RANK])),
        "Gatherv",
    ),
    "scatterv": (
        lambda x: mpi.scatterv(x, COUNTS, 0),
        at(0, rows(0, sum(COUNTS)), rows(RANK, COUNTS[RANK])),
        np.split(rows(0, sum(COUNTS)), np.cumsum(COUNTS))[RANK],
        "Scatterv",
    ),
}
if LAST:
    MOVES["send and recv"] = ring, part(RANK, N), part(LEFT, N), "Send", "Recv"


@functools.cache
def compiled_move(name):
    call = MOVES[name][0]
    return jax.jit(lambda x: (call(x), call(x.astype(jnp.int8))))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", MOVES)
def test_moves(name, limit, counting, calls_of):
    _, sent, expected, *names = MOVES[name]
    # alltoallv counts in rows, if there are too many elements.
    counting(max(limit, ROWS) if name == "alltoallv" else limit)
    (wide, narrow), calls = calls_of(compiled_move(name), sent)
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(narrow, expected.astype(np.int8))
    assert calls == Counter(dict.fromkeys(names, 2))


@functools.cache
def user_made_sum():
    def add(a, b, datatype):
        a, b = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
        b += a

    return MPI.Op.Create(add, commute=True)


#: A type, an operator, whether it is MPI's own, and what it does.
OPERATORS = {
    "SUM": (jnp.float32, lambda: MPI.SUM, True, np.sum),
    "MIN": (jnp.int16, lambda: MPI.MIN, True, np.min),
    "SUM-bfloat16": (jnp.bfloat16, lambda: MPI.SUM, False, np.sum),
    "SUM-user": (jnp.float32, user_made_sum, False, np.sum),
}
REDUCTIONS = {
    "allreduce": (mpi.allreduce, "Allreduce"),
    "exscan": (mpi.exscan, "Exscan"),
    "reduce": (lambda x, op: mpi.reduce(x, op, LAST), "Reduce"),
    "reduce_scatter": (mpi.reduce_scatter, "Reduce_scatter_block"),
    "scan": (mpi.scan, "Scan"),
}


def sent_for(name):
    return part(RANK, SIZE, N) if name == "reduce_scatter" else part(RANK, N)


@functools.cache
def compiled_reduction(name, operator):
    dtype, op, *_ = OPERATORS[operator]
    call, op = REDUCTIONS[name][0], op()

    def reduce_twice(x):
        x = x.astype(dtype)
        # The result of the second one takes the memory of its operand.
        return call(x, op), call(x * 2, op)

    return jax.jit(reduce_twice)


def reduced(name, function):
    if name == "reduce_scatter":
        return function(everyones(SIZE, N)[:, RANK], axis=0)
    arrays = everyones(N)
    if name == "reduce" and RANK != LAST:
        return arrays[RANK]
    if name == "exscan":
        lowest = np.iinfo(np.int16).max if function is np.min else 0
        return function(arrays[:RANK], axis=0, initial=lowest)
    return function(arrays[: RANK + 1] if name == "scan" else arrays, axis=0)


def calls_for(name, limit, *, is_built_in, has_large):
    """The calls of MPI that reduce N elements."""
    # MPI hands an operator that is not its own an int, whatever the call, and may hand it
    # the blocks for all processes at once.
    longest = N * SIZE if name == "reduce_scatter" and not is_built_in else N
    if longest <= limit or (is_built_in and has_large):
        return Counter({REDUCTIONS[name][1]: 1})
    chunks = -(-N // limit)
    # The block for each process is reduced by itself.
    return Counter(
        {"Reduce": SIZE * chunks}
        if name == "reduce_scatter"
        else {REDUCTIONS[name][1]: chunks}
    )


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, operator, limit, counting, calls_of):
    has_large = counting(limit)
    dtype, _, is_built_in, function = OPERATORS[operator]
    (first, second), calls = calls_of(compiled_reduction(name, operator), sent_for(name))
    expected = reduced(name, function)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first.astype(float), expected)
    is_identity = name == "exscan" and RANK == 0
    np.testing.assert_array_equal(
        second.astype(float), expected * (1 if is_identity else 2)
    )
    once = calls_for(name, limit, is_built_in=is_built_in, has_large=has_large)
    assert calls == once + once


@pytest.mark.parametrize("limit", LIMITS)
def test_gradient_of_scan(limit, counting):
    """Its transpose is a scan from the other end, on a communicator of its own."""
    counting(limit)
    weights = part(RANK, N)
    gradient = compiled_gradient()(jnp.ones(N), weights)
    np.testing.assert_array_equal(gradient, everyones(N)[RANK:].sum(0))


@functools.cache
def compiled_gradient():
    return jax.jit(jax.grad(lambda x, weights: jnp.sum(mpi.scan(x, MPI.SUM) * weights)))


@pytest.mark.parametrize("limit", LIMITS)
def test_status(limit, counting):
    """Messages that are as long as what they are received into, and shorter ones."""
    counting(limit)
    buffer = jnp.zeros(N)
    for length in (N, 3, 0):
        status, message = MPI.Status(), jnp.arange(1.0, length + 1)
        received = mpi.sendrecv(message, buffer, LEFT, RIGHT, status=status)
        np.testing.assert_array_equal(received[:length], message)
        assert status.Get_elements(MPI.FLOAT) == length
        assert status.Get_count(MPI.FLOAT) == length
        assert status.Get_source() == LEFT
        if RANK == 0 and LAST:
            mpi.send(message, 1)
        if RANK == 1:
            received = mpi.recv(buffer, 0, status=status)
            np.testing.assert_array_equal(received[:length], message)
            assert status.Get_elements(MPI.FLOAT) == length


def test_empty_arrays(counting, calls_of):
    counting(1)
    empty = jnp.zeros((SIZE, 0))
    total, calls = calls_of(lambda x: mpi.reduce_scatter(x, MPI.SUM), empty)
    assert (total.shape, calls) == ((0,), Counter(Reduce_scatter_block=1))
    total, calls = calls_of(lambda x: mpi.allreduce(x, MPI.SUM), empty)
    assert (total.shape, calls) == ((SIZE, 0), Counter(Allreduce=1))
    received, calls = calls_of(lambda x: mpi.allgatherv(x, [2] * SIZE), jnp.zeros((2, 0)))
    assert (received.shape, calls) == ((2 * SIZE, 0), Counter(Allgatherv=1))


@pytest.mark.ranks(2)
def test_rows_of_alltoallv(counting):
    """They are counted by as many at once as all counts are multiples of."""
    has_large = counting(LAST)
    x = rows(RANK, 6 * SIZE)
    sixes = [6] * SIZE
    expected = np.concatenate(
        [rows(r, 6 * SIZE)[6 * RANK : 6 * RANK + 6] for r in range(SIZE)]
    )
    np.testing.assert_array_equal(mpi.alltoallv(x, sixes, sixes), expected)

    # Here it is one, on all ranks alike, or those that have no error would wait.
    counts = [3 if rank == RANK else 2 for rank in range(SIZE)]
    x = rows(RANK, 2 * SIZE + 1)
    if has_large:
        received = mpi.alltoallv(x, counts, counts)
        np.testing.assert_array_equal(received[2 * RANK :][:3], x[2 * RANK :][:3])
        return
    text = (
        rf"\d+ rows are more than this MPI takes in one call: {LAST} times 1, the greatest "
        "common divisor of all counts"
    )
    with pytest.raises(Exception, match=text):
        jax.block_until_ready(mpi.alltoallv(x, counts, counts))
