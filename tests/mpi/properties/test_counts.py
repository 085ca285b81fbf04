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
from every import every_operation_that, every_reduction
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax import notoken as mpi
from mpi4jax._testing.cases import OPERATORS as BUILT_IN
from mpi4jax._testing.cases import SUM
from mpi4jax._testing.cases.ragged import Alltoallv

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
N = 5

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


def part(rank, shape):
    """Small numbers that differ from rank to rank."""
    return np.random.default_rng(rank).integers(-9, 10, shape).astype(np.float32)


def least_limit(case):
    """The lowest limit that an operation takes."""
    if not isinstance(case, Alltoallv):
        return 1
    # It counts rows if there are too many elements, also those before the last part.
    table = np.array([case.rows_to_each(sender) for sender in range(SIZE)])
    before = table[:, :-1].sum(1).max(), table[:-1].sum(0).max()
    return max(table.max(), *before)


@functools.cache
def compiled_move(case, root):
    rooted = case.replace(root=root)
    return rooted, jax.jit(lambda x: (rooted.call(x), rooted.call(x.astype(jnp.int8))))


@pytest.mark.parametrize("limit", LIMITS)
@every_operation_that(lambda case: not case.is_reduction)
def test_moves(case, limit, counting, calls_of):
    counting(max(limit, least_limit(case)))
    for root in case.roots:
        rooted, function = compiled_move(case, root)
        xs = rooted.arrays(part, (N,))
        (wide, narrow), calls = calls_of(function, xs[RANK])
        expected = rooted.result(xs)
        np.testing.assert_array_equal(wide, expected)
        np.testing.assert_array_equal(narrow, expected.astype(np.int8))
        assert calls == case.calls + case.calls


def add(a, b, datatype):
    a, b = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
    b += a


#: A type, an operator, and whether it is MPI's own.
OPERATORS = {
    "SUM": (jnp.float32, SUM, True),
    "MIN": (jnp.int16, BUILT_IN["MIN"], True),
    "SUM-bfloat16": (jnp.bfloat16, SUM, False),
    "SUM-user": (jnp.float32, SUM._replace(op=MPI.Op.Create(add, commute=True)), False),
}


@functools.cache
def compiled_reduction(case, operator):
    dtype, op, _ = OPERATORS[operator]
    call = case.replace(operator=op).call

    def reduce_twice(x):
        x = x.astype(dtype)
        # The result of the second one takes the memory of its operand.
        return call(x), call(x * 2)

    return jax.jit(reduce_twice)


def calls_for(case, limit, *, is_built_in, has_large):
    """The calls of MPI that reduce blocks of N elements."""
    parts = case.parts(N)
    lengths = [N] if parts is None else parts
    # MPI hands an operator that is not its own an int, whatever the call, and may hand it
    # the parts for all processes at once.
    longest = max(lengths) if is_built_in else sum(lengths)
    if longest <= limit or (is_built_in and has_large):
        return case.calls
    # The part for each process is reduced by itself, in chunks.
    (name,) = case.calls if parts is None else ["Reduce"]
    return Counter({name: sum(max(1, -(-length // limit)) for length in lengths)})


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("operator", OPERATORS)
@every_reduction
def test_reductions(case, operator, limit, counting, calls_of):
    has_large = counting(limit)
    dtype, op, is_built_in = OPERATORS[operator]
    xs = [x.astype(dtype) for x in case.arrays(part, (N,))]
    (first, second), calls = calls_of(compiled_reduction(case, operator), xs[RANK])
    reduction = case.replace(operator=op)
    for actual, sent in ((first, xs), (second, [x * 2 for x in xs])):
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, reduction.result(sent))
    once = calls_for(case, limit, is_built_in=is_built_in, has_large=has_large)
    assert calls == once + once


@pytest.mark.parametrize("limit", LIMITS)
def test_gradient_of_scan(limit, counting):
    """Its transpose is a scan from the other end, on a communicator of its own."""
    counting(limit)
    weights = part(RANK, (N,))
    gradient = compiled_gradient()(jnp.ones(N), weights)
    np.testing.assert_array_equal(
        gradient, sum(part(rank, (N,)) for rank in range(RANK, SIZE))
    )


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
    x = part(RANK, (6 * SIZE, N))
    sixes = [6] * SIZE
    expected = np.concatenate(
        [part(r, (6 * SIZE, N))[6 * RANK : 6 * RANK + 6] for r in range(SIZE)]
    )
    np.testing.assert_array_equal(mpi.alltoallv(x, sixes, sixes), expected)

    # Here it is one, on all ranks alike, or those that have no error would wait.
    counts = [3 if rank == RANK else 2 for rank in range(SIZE)]
    x = part(RANK, (2 * SIZE + 1, N))
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
