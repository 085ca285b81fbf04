"""Counts that only the running program knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax.experimental import tokens

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
LAST = SIZE - 1
COLUMNS = 2

pytestmark = pytest.mark.usefixtures("enable_x64")
compiled = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


def table(seed):
    """How many rows each process sends to each."""
    return np.random.default_rng(seed).integers(0, 4, (SIZE, SIZE))


def rows_of(rank, count):
    """Rows that tell where they are from."""
    row = np.arange(count)[:, np.newaxis] + 100 * rank
    return row + np.array([0.25, 0.5])


def received(counts, rank):
    """The rows that a process receives, by the table of counts."""
    parts = []
    for sender in range(SIZE):
        first = counts[sender, :rank].sum()
        sent = rows_of(sender, counts[sender].sum())
        parts.append(sent[first : first + counts[sender, rank]])
    return np.concatenate(parts)


def padded(rows, capacity, value=0):
    filling = np.full((capacity - len(rows), *rows.shape[1:]), value)
    return np.concatenate([rows, filling])


@compiled
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_alltoallv(transform, seed, dtype):
    counts = table(seed)
    x = rows_of(RANK, counts[RANK].sum())
    expected = received(counts, RANK)
    capacity = len(expected) + seed

    @transform
    def move(x, counts):
        return mpi.alltoallv(x, counts, capacity=capacity, fill_value=-1, comm=comm)

    result, recv_counts = move(
        padded(x, len(x) + 3, np.nan), jnp.asarray(counts[RANK], dtype)
    )
    np.testing.assert_array_equal(result, padded(expected, capacity, -1))
    np.testing.assert_array_equal(recv_counts, counts[:, RANK])


@compiled
@pytest.mark.parametrize("seed", range(5))
def test_allgatherv(transform, seed):
    counts = table(seed)[0]
    expected = np.concatenate([rows_of(rank, counts[rank]) for rank in range(SIZE)])
    capacity = len(expected) + seed

    @transform
    def collect(x, count):
        return mpi.allgatherv(x, count, capacity=capacity, fill_value=-1, comm=comm)

    x = rows_of(RANK, counts[RANK])
    result, recv_counts = collect(padded(x, len(x) + 2, np.nan), counts[RANK])
    np.testing.assert_array_equal(result, padded(expected, capacity, -1))
    np.testing.assert_array_equal(recv_counts, counts)


def test_the_program_is_compiled_once_for_all_counts():
    @jax.jit
    def move(x, counts):
        return mpi.alltoallv(x, counts, capacity=4 * SIZE, comm=comm)

    for seed in range(4):
        counts = table(seed)
        x = padded(rows_of(RANK, counts[RANK].sum()), 4 * SIZE)
        result, _ = move(x, counts[RANK])
        np.testing.assert_array_equal(result, padded(received(counts, RANK), 4 * SIZE))
    assert move._cache_size() == 1


def test_particles_that_move_in_a_loop():
    # Each has a number, and goes to the process that this leaves as a remainder. Then to
    # the next one, round after round.
    capacity = 5 * SIZE

    def step(round, state):
        numbers, there = state
        target = jnp.where(there, (numbers + round) % SIZE, SIZE)
        order = jnp.argsort(target)
        counts = jnp.bincount(target, length=SIZE + 1)[:SIZE]
        numbers, counts = mpi.alltoallv(numbers[order], counts, capacity=capacity)
        return numbers, jnp.arange(capacity) < counts.sum()

    numbers = np.arange(RANK, 3 * SIZE, SIZE)
    state = padded(numbers, capacity), np.arange(capacity) < len(numbers)
    rounds = 2 * SIZE + 1
    numbers, there = jax.jit(lambda s: jax.lax.fori_loop(0, rounds, step, s))(state)
    remaining = (RANK - rounds + 1) % SIZE
    np.testing.assert_array_equal(
        np.sort(numbers[there]), np.arange(remaining, 3 * SIZE, SIZE)
    )


@pytest.mark.parametrize("fill_value", [0, 2.5, np.array([1.0, 2.0])])
def test_fill_value(fill_value):
    x = rows_of(RANK, 1)
    result, _ = mpi.allgatherv(x, 1, capacity=SIZE + 2, fill_value=fill_value)
    expected = np.broadcast_to(fill_value, (2, COLUMNS))
    np.testing.assert_array_equal(result[SIZE:], expected)


def test_fill_value_has_a_derivative():
    def loss(value):
        return mpi.allgatherv(jnp.ones(1), 1, capacity=SIZE + 3, fill_value=value)[0].sum()

    assert jax.grad(loss)(2.0) == 3


def test_nothing_at_all():
    nothing = np.zeros((0, COLUMNS), np.float32)
    result, counts = mpi.alltoallv(nothing, np.zeros(SIZE, int), capacity=0)
    assert result.shape == (0, COLUMNS)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(counts, np.zeros(SIZE))
    result, counts = mpi.allgatherv(nothing, 0, capacity=2)
    np.testing.assert_array_equal(result, np.zeros((2, COLUMNS)))


def test_tokens():
    counts = jnp.ones(SIZE, int)
    x = jnp.arange(float(SIZE))
    (result, recv_counts), token = tokens.alltoallv(x, counts, capacity=SIZE)
    np.testing.assert_array_equal(result, np.full(SIZE, RANK))
    (result, recv_counts), token = tokens.allgatherv(x, 1, capacity=SIZE, token=token)
    np.testing.assert_array_equal(result, np.zeros(SIZE))
    np.testing.assert_array_equal(recv_counts, np.ones(SIZE))


def error_of(function):
    """The text of the error, which all processes get."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(function())
    # Communication goes on.
    assert mpi.allreduce(1, MPI.SUM) == SIZE
    return str(caught.value)


@compiled
def test_rows_that_do_not_fit_are_an_error_on_all_processes(transform):
    # The last process gets one from each, and has room for none or one less.
    sent = np.zeros(SIZE, int)
    sent[LAST] = 1
    capacity = SIZE - 1 if RANK == LAST else SIZE
    move = transform(lambda x, counts: mpi.alltoallv(x, counts, capacity=capacity))
    shown = [f"1 from rank {rank}" for rank in range(min(SIZE, 8))]
    assert (
        f"alltoallv: rank {LAST} has room for {SIZE - 1} rows (`capacity`), and gets "
        f"{SIZE}: {', '.join(shown)}. Nothing was sent"
    ) in error_of(lambda: move(np.ones(1), sent))


@compiled
def test_more_rows_to_send_than_there_are(transform):
    sent = np.zeros(SIZE, int)
    sent[0] = 3
    rows = 2 if RANK == LAST else 3
    move = transform(lambda x, counts: mpi.alltoallv(x, counts, capacity=99))
    assert (
        f"alltoallv: rank {LAST} has 3 rows in `sendcounts`, and 2 in `x`: 3 for rank 0. "
        "Nothing was sent"
    ) in error_of(lambda: move(np.ones(rows), sent))


def test_negative_numbers_of_rows():
    sent = np.zeros(SIZE, int)
    sent[0] = -2 if RANK == LAST else 0
    assert (
        f"alltoallv: rank {LAST} has a negative number of rows in `sendcounts`: -2 for "
        "rank 0. Nothing was sent"
    ) in error_of(lambda: mpi.alltoallv(np.ones(1), sent, capacity=99))
    own = -1 if RANK == LAST else 1
    assert (
        f"allgatherv: rank {LAST} has a negative number of rows in `counts`: -1. Nothing "
        "was sent"
    ) in error_of(lambda: mpi.allgatherv(np.ones(1), own, capacity=99))


def test_rows_of_all_that_do_not_fit():
    capacity = SIZE - 1 if RANK == LAST else SIZE
    counts = ", ".join(f"1 from rank {rank}" for rank in range(min(SIZE, 8)))
    assert (
        f"allgatherv: rank {LAST} has room for {SIZE - 1} rows (`capacity`), and gets "
        f"{SIZE}: {counts}. Nothing was sent"
    ) in error_of(lambda: mpi.allgatherv(np.ones(1), 1, capacity=capacity))
    assert (
        "allgatherv: rank 0 has 2 rows in `counts`, and 1 in `x`. Nothing was sent"
    ) in error_of(lambda: mpi.allgatherv(np.ones(1), 2, capacity=99))


def moved(counts, capacity):
    return lambda x: mpi.alltoallv(x, counts, capacity=capacity)[0]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_alltoallv_is_linear(dtype):
    counts = table(7)
    capacity = 4 * SIZE
    random = np.random.default_rng(RANK)
    x = random.normal(size=(capacity, COLUMNS)).astype(dtype)
    y = random.normal(size=(capacity, COLUMNS)).astype(dtype)
    result, transposed = jax.vjp(moved(jnp.asarray(counts[RANK]), capacity), x)
    (back,) = transposed(y)
    there = comm.allreduce(np.vdot(np.conj(result), y))
    np.testing.assert_allclose(comm.allreduce(np.vdot(np.conj(x), back)), there, rtol=1e-12)
    # What is not sent has no derivative.
    np.testing.assert_array_equal(back[counts[RANK].sum() :], 0)
    _, pushed = jax.jvp(moved(jnp.asarray(counts[RANK]), capacity), [x], [y])
    np.testing.assert_array_equal(pushed, moved(counts[RANK], capacity)(y))
    # Transposing twice is the operation again.
    _, once_more = jax.vjp(lambda y: transposed(y)[0], y)
    np.testing.assert_array_equal(once_more(x)[0], result)


def test_allgatherv_is_shared():
    counts = table(7)[0]
    x = rows_of(RANK, 5)
    capacity = counts.sum() + 2
    collect = jax.jit(lambda x: mpi.allgatherv(x, counts[RANK], capacity=capacity)[0])
    result, transposed = jax.vjp(collect, x)
    y = np.random.default_rng(0).normal(size=(capacity, COLUMNS))  # the same everywhere
    first = counts[:RANK].sum()
    own = padded(y[first : first + counts[RANK]], 5)
    np.testing.assert_array_equal(transposed(y)[0], own)
    _, once_more = jax.vjp(lambda y: transposed(y)[0], y)
    np.testing.assert_array_equal(once_more(x)[0], result)


@pytest.mark.parametrize("seed", range(2))
def test_gradients_where_counts_follow_from_what_is_differentiated(seed):
    x = np.random.default_rng(seed).uniform(0, SIZE, 6)

    def travel(x):
        """Sends each number to the process that it is in."""
        x = jnp.sort(x)
        counts = jnp.histogram(x, bins=jnp.arange(SIZE + 1))[0].astype(int)
        arrived, recv_counts = mpi.alltoallv(x, counts, capacity=6 * SIZE)
        return jnp.sin(arrived), recv_counts

    check_grads(lambda x: travel(x)[0], (x,), order=2, modes=["fwd"])
    gradient = jax.jit(jax.grad(lambda x: travel(x)[0].sum()))(x)
    np.testing.assert_allclose(gradient, np.cos(x), rtol=1e-12)


def test_a_batch_of_rows_is_one_message(sequence_of):
    counts = table(3)
    capacity = 4 * SIZE
    move = jax.jit(jax.vmap(moved(counts[RANK], capacity), in_axes=2, out_axes=2))
    x = np.stack([rows_of(RANK, capacity) * factor for factor in (1, 2, 3)], axis=2)
    result, sequence = sequence_of(move, x)
    expected = padded(received(counts, RANK), capacity)
    np.testing.assert_array_equal(result, expected[..., np.newaxis] * [1, 2, 3])
    assert sequence == ["Alltoall", "Allreduce", "Alltoallv"]


def test_a_batch_of_counts():
    tables = np.stack([table(seed) for seed in (3, 4)])
    capacity = 4 * SIZE
    x = rows_of(RANK, capacity)

    def move(x, counts):
        return mpi.alltoallv(x, counts, capacity=capacity)

    result, recv_counts = jax.vmap(move, in_axes=(None, 0))(x, tables[:, RANK])
    for n, counts in enumerate(tables):
        np.testing.assert_array_equal(result[n], padded(received(counts, RANK), capacity))
        np.testing.assert_array_equal(recv_counts[n], counts[:, RANK])

    def loss(x, counts):
        return jnp.sum(move(x, counts)[0] ** 2) / 2

    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(x, tables[:, RANK])
    for gradient, counts in zip(gradients, tables, strict=True):
        sent = counts[RANK].sum()
        np.testing.assert_array_equal(gradient, padded(x[:sent], capacity))

    def own(x, count):
        return jnp.sum(mpi.allgatherv(x, count, capacity=capacity)[0] ** 2) / 2

    gradients = jax.vmap(jax.grad(own), in_axes=(None, 0))(x, np.array([1, 2]))
    for gradient, count in zip(gradients, (1, 2), strict=True):
        np.testing.assert_array_equal(gradient, padded(x[:count], capacity))


X = np.ones((2, 3))
WRONG = {
    "array without a capacity": (
        lambda: mpi.alltoallv(X, jnp.ones(SIZE, int), np.ones(SIZE, int)),
        TypeError,
        "alltoallv got a JAX array for argument `sendcounts`, expected a sequence of "
        "integers. With counts that only the running program knows, say for how many rows "
        "the result has room: pass `capacity`",
    ),
    "array of counts without a capacity": (
        lambda: mpi.allgatherv(X, jnp.ones(SIZE, int)),
        TypeError,
        "allgatherv got a JAX array for argument `counts`, expected a sequence of "
        "integers.",
    ),
    "neither": (
        lambda: mpi.alltoallv(X, [2] * SIZE),
        TypeError,
        "alltoallv: `recvcounts` must be a sequence of integers, not None",
    ),
    "both": (
        lambda: mpi.alltoallv(X, [2] * SIZE, [2] * SIZE, capacity=3),
        TypeError,
        "alltoallv got both `recvcounts` and `capacity`, expected one of them",
    ),
    "fractions": (
        lambda: mpi.alltoallv(X, np.ones(SIZE), capacity=3),
        TypeError,
        "alltoallv got an array of float64 for argument `sendcounts`, expected integers",
    ),
    "too many counts": (
        lambda: mpi.alltoallv(X, np.ones(SIZE + 1, int), capacity=3),
        ValueError,
        f"alltoallv got an array of shape ({SIZE + 1},) for argument `sendcounts`, "
        f"expected an array of shape ({SIZE},)",
    ),
    "counts of all": (
        lambda: mpi.allgatherv(X, [1] * SIZE, capacity=3),
        ValueError,
        f"allgatherv got an array of shape ({SIZE},) for argument `counts`, expected a "
        "number",
    ),
    "capacity": (
        lambda: mpi.allgatherv(X, 1, capacity=-1),
        ValueError,
        "allgatherv got -1 for argument `capacity`, expected a number of rows, not "
        "negative",
    ),
    "capacity that is traced": (
        lambda: jax.jit(lambda n: mpi.allgatherv(X, 1, capacity=n))(3),
        TypeError,
        "allgatherv: `capacity` must be an integer, not a traced array of type int",
    ),
    "no rows": (
        lambda: mpi.allgatherv(1.0, 1, capacity=3),
        ValueError,
        "allgatherv got an array without axes for argument `x`, expected one with rows",
    ),
    "fill value": (
        lambda: mpi.allgatherv(X, 1, capacity=3, fill_value=1j),
        TypeError,
        "allgatherv got complex128 for argument `fill_value`, expected a number that is "
        "float64, as what is sent",
    ),
    "fill values": (
        lambda: mpi.allgatherv(X, 1, capacity=3, fill_value=np.ones(2)),
        ValueError,
        "allgatherv got an array of shape (2,) for argument `fill_value`, expected a "
        "number, or an array for blocks of shape (3,)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    call, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
