"""vmap of every operation: what a loop over the batch gives, in one message."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import NO_NUMBERS, RANKS, every_argument, every_operation, every_reduction, over
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._testing.cases import CASES
from mpi4jax.experimental import auto_tokenize

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
NULL = MPI.PROC_NULL
BATCH = 3


def shift(x):
    return mpi.sendrecv(x, x, LEFT, RIGHT, sendtag=RANK, recvtag=LEFT)


def batch(shape, *sizes):
    """Small numbers, whose sums and products are exact, and differ from rank to rank."""
    generator = np.random.default_rng([len(sizes), RANK])
    return generator.integers(1, 20, (*sizes, *shape)).astype(np.float32)


def loop(function, x):
    return np.stack([np.asarray(function(jnp.asarray(part))) for part in x])


def times(n, calls):
    return Counter({name: n * count for name, count in calls.items()})


def with_other_operators(case):
    """A reduction with each of the operators that have a derivative, apart from the sum."""
    same = (c for c in CASES.values() if c.operations == case.operations)
    return [c for c in same if not c.is_linear]


@over(case for case in CASES.values() if case.is_linear)
def test_axes(case, calls_of):
    check_axes(case.call, case.shape((2, 2)), case.calls, calls_of)


@every_reduction
def test_axes_with_other_operators(case, calls_of):
    cases = with_other_operators(case)
    calls = sum((case.calls for case in cases), Counter())
    check_axes(together(cases), case.shape((2, 2)), calls, calls_of)


def together(cases):
    """Several calls in one function, as many programs take long to compile."""
    return lambda x: jnp.stack([case.call(x) for case in cases])


def check_axes(f, shape, calls_of_f, calls_of):
    xs, xss = batch(shape, BATCH), batch(shape, 2, BATCH)
    expected, nested = loop(f, xs), np.stack([loop(f, xs) for xs in xss])
    eager, calls = calls_of(jax.vmap(f, in_axes=1, out_axes=-1), np.moveaxis(xs, 0, 1))
    np.testing.assert_array_equal(np.moveaxis(eager, -1, 0), expected)
    assert calls == calls_of_f

    def mapped(xs, xss):
        # Each rank has its batch at axes of its own.
        mine = (0, 1, -1)[RANK % 3]
        return (
            jax.vmap(f)(xs),
            jax.vmap(f, 1, -1)(jnp.moveaxis(xs, 0, 1)),
            jax.vmap(f, -1, 1)(jnp.moveaxis(xs, 0, -1)),
            jax.vmap(jax.jit(f), mine, mine)(jnp.moveaxis(xs, 0, mine)),
            jax.vmap(auto_tokenize(f))(xs),
            jax.vmap(jax.vmap(f, 1, -1))(jnp.moveaxis(xss, 1, 2)),
            jax.vmap(jax.vmap(f, 0, 1), -1, 0)(jnp.moveaxis(xss, 0, -1)),
        )

    for transform in (jax.jit, auto_tokenize):
        results, calls = calls_of(transform(mapped), xs, xss)
        assert calls == times(7, calls_of_f)
        first, last, second, own, tokenized, first_twice, last_twice = map(
            np.asarray, results
        )
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(np.moveaxis(last, -1, 0), expected)
        np.testing.assert_array_equal(np.moveaxis(second, 1, 0), expected)
        np.testing.assert_array_equal(np.moveaxis(own, (0, 1, -1)[RANK % 3], 0), expected)
        np.testing.assert_array_equal(tokenized, expected)
        np.testing.assert_array_equal(np.moveaxis(first_twice, -1, 1), nested)
        np.testing.assert_array_equal(np.moveaxis(last_twice, 2, 1), nested)


@over(case for case in CASES.values() if case.is_linear and case.has_derivative)
def test_gradients(case, calls_of):
    calls = check_gradients(case.call, case.shape((2, 2)), case.calls, calls_of)
    assert calls.total() <= case.calls.total() + 1  # there, and back


@every_reduction
def test_gradients_with_other_operators(case, calls_of):
    cases = with_other_operators(case)
    calls = sum((case.calls for case in cases), Counter())
    check_gradients(together(cases), case.shape((2, 2)), calls, calls_of)


def check_gradients(f, shape, calls_of_f, calls_of):
    """Gives the calls of one gradient."""
    xs = batch(shape, BATCH)

    def loss(x):
        y = f(x)
        weights = jnp.arange(1.0, y.size + 1).reshape(y.shape)
        return jnp.sum(weights * y * y)

    gradient = jax.jit(jax.grad(loss))
    expected = loop(gradient, xs)
    _, calls = calls_of(gradient, xs[0])
    assert calls_of_f <= calls

    @jax.jit
    def gradients(xs):
        of_map = jax.grad(lambda xs: jnp.sum(jax.vmap(loss, 1)(xs)))
        return jax.vmap(jax.grad(loss))(xs), of_map(jnp.moveaxis(xs, 0, 1))

    (map_of_gradients, gradient_of_map), both = calls_of(gradients, xs)
    np.testing.assert_array_equal(map_of_gradients, expected)
    np.testing.assert_array_equal(np.moveaxis(gradient_of_map, 1, 0), expected)
    assert both == times(2, calls)
    return calls


def test_operands_of_sendrecv(calls_of):
    """Both arrays are mapped over, at their own axes, or one of them, or only the other."""
    xs, buffers = batch((2,), BATCH), -batch((4,), BATCH)
    everyones = np.stack(COMM.allgather(xs))

    def ring(x, buffer):
        return mpi.sendrecv(x, buffer, LEFT, RIGHT)

    def nowhere(x, buffer):
        return mpi.sendrecv(x, buffer, NULL, NULL)

    @jax.jit
    def mapped(xs, buffers):
        return (
            jax.vmap(ring, (1, -1))(xs.T, buffers[:, :2].T),
            jax.vmap(ring, (0, None))(xs, buffers[0, :2]),
            jax.vmap(ring, (None, 0))(xs[0], buffers[:, :2]),
            jax.vmap(nowhere, (1, 0))(xs.T, buffers),
            jax.vmap(nowhere, (0, None))(xs, buffers[0]),
            jax.vmap(nowhere, (None, 1))(xs[0], buffers.T),
        )

    results, calls = calls_of(mapped, xs, buffers)
    assert calls == Counter(Sendrecv=6)
    expected = (
        everyones[LEFT],
        everyones[LEFT],
        np.stack([everyones[LEFT][0]] * BATCH),
        buffers,
        np.stack([buffers[0]] * BATCH),
        buffers,
    )
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, value)


def test_what_is_not_mapped_is_sent_once(calls_of):
    xs = batch((2,), BATCH)

    @jax.jit
    @jax.vmap
    def function(x):
        return x + mpi.allreduce(jnp.ones(2), MPI.SUM)

    result, calls = calls_of(function, xs)
    np.testing.assert_array_equal(result, xs + SIZE)
    assert calls == Counter(Allreduce=1)


def test_in_loops(calls_of):
    """A map of a loop is a loop of messages with the batch."""
    xs = batch((2,), BATCH)
    everyones = np.stack(COMM.allgather(xs))

    def looped(x):
        return jax.lax.fori_loop(0, SIZE + 1, lambda _, x: shift(x), x)

    def scanned(x):
        return jax.lax.scan(
            lambda c, y: (c, mpi.allreduce(c * y, MPI.SUM)), x, jnp.ones(4)
        )[1]

    @jax.jit
    def mapped(xs):
        return jax.vmap(looped)(xs), jax.vmap(scanned, -1, -1)(xs.T)

    (ring, sums), calls = calls_of(mapped, xs)
    np.testing.assert_array_equal(ring, everyones[LEFT])
    np.testing.assert_array_equal(sums, np.stack([everyones.sum(0).T] * 4))
    assert calls == Counter(Sendrecv=SIZE + 1, Allreduce=4)


def test_conditions_that_differ_within_a_batch(calls_of):
    """Where one element takes a branch, or a step of a loop, the whole batch is sent."""
    xs = np.arange(1.0, BATCH + 1, dtype=np.float32)

    def total(x):
        return mpi.allreduce(x, MPI.SUM)

    @jax.jit
    @jax.vmap
    def function(x):
        branch = jax.lax.cond(x < 2, total, lambda x: shift(-x), x)
        steps = jax.lax.while_loop(
            lambda s: s[0] < x, lambda s: (s[0] + 1, total(s[1])), (0, x)
        )
        return branch, steps[1]

    (branches, steps), calls = calls_of(function, xs)
    np.testing.assert_array_equal(branches, [SIZE, -2, -3])
    np.testing.assert_array_equal(steps, xs * SIZE**xs)
    assert calls == Counter(Allreduce=1 + BATCH, Sendrecv=1)


def map_number(call, argument):
    """Call with a number that is traced, or such numbers for all processes."""
    is_list = argument.endswith("counts")
    jax.vmap(lambda n: call([n] * SIZE if is_list else n))(jnp.arange(SIZE))


@every_operation
def test_what_is_no_array_is_not_mapped(case, calls_of):
    others = {*NO_NUMBERS, *RANKS}
    numbers = list(every_argument(case, lambda name: name not in others))

    def refused():
        for name, argument, call in numbers:
            with pytest.raises(
                TypeError,
                match=f"{name}: `{argument}` must be (.|\n)*, not a traced array of type "
                "(.|\n)*An abstract tracer was passed where a concrete value",
            ):
                map_number(call, argument)

    assert calls_of(refused) == (None, Counter())
