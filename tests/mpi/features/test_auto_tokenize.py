"""auto_tokenize computes what the function does, wherever it is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax.experimental import auto_tokenize


def total(x):
    return mpi.allreduce(x, MPI.SUM)


def shift_twice(rank, size):
    """Two messages on one way, whose order decides about the result."""
    right, left = (rank + 1) % size, (rank - 1) % size

    def first(x):
        return mpi.sendrecv(x, x, left, right)

    def second(x):
        return mpi.sendrecv(10 * x, x, left, right)

    return first, second, left


def test_same_results_as_without(rank, size):
    def function(x, n):
        y = jax.lax.fori_loop(0, 3, lambda i, y: total(y) / size, x)
        y = jax.lax.cond(n > 0, total, lambda y: y, y)
        mpi.barrier()
        return {"y": y, "n": n}

    plain = jax.jit(function)(jnp.ones(3) * rank, 2)
    tokenized = jax.jit(auto_tokenize(function))(jnp.ones(3) * rank, 2)
    np.testing.assert_allclose(plain["y"], tokenized["y"])
    assert tokenized["n"] == 2


def test_pytrees_keywords_and_static_arguments(size):
    @auto_tokenize
    def function(tree, *, scale, name):
        assert name == "mean"
        return [total(tree["a"]) * scale, None]

    out = function({"a": jnp.ones(2), "b": None}, scale=2, name="mean")
    np.testing.assert_array_equal(out[0], 2 * size * np.ones(2))
    assert out[1] is None


def test_closed_over_tracers(size):
    def outer(x, y):
        return auto_tokenize(lambda a: total(a + y))(x)

    np.testing.assert_array_equal(jax.jit(outer)(jnp.ones(2), jnp.ones(2)), 2.0 * size)


def test_grad_and_vmap(size):
    loss = auto_tokenize(lambda x: total(x * x).sum())
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(loss)(x), 2 * x)
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), 2 * x)
    np.testing.assert_array_equal(jax.grad(jax.jit(loss))(x), 2 * x)
    batched = jax.vmap(auto_tokenize(total), in_axes=1, out_axes=1)(jnp.ones((2, 3)))
    np.testing.assert_array_equal(batched, size * np.ones((2, 3)))
    (transposed,) = jax.linear_transpose(auto_tokenize(total), x)(x)
    np.testing.assert_array_equal(transposed, x)


@pytest.mark.parametrize("jit_inner", [False, True])
def test_inside_other_functions(rank, size, jit_inner):
    """Beside and within loops and jitted functions, every call is made, in order.

    A message that is not sent, or sent too late, shows as another value: all take one way.
    """
    first, second, left = shift_twice(rank, size)
    first, second = auto_tokenize(first), auto_tokenize(second)
    if jit_inner:
        first, second = jax.jit(first), jax.jit(second)
        first(jnp.float32(0))  # JAX remembers the trace

    def function(x):
        def body(i, y):
            first(x)  # its result is not used
            return second(x) + mpi.sendrecv(7 * x, x, left, (rank + 1) % size)

        first(x)
        y = jax.lax.fori_loop(0, 3, body, x)
        return y, second(x)

    for mode in (jax.jit, auto_tokenize, lambda f: jax.jit(auto_tokenize(f))):
        results = mode(function)(jnp.float32(rank + 1))
        assert results == (17 * (left + 1), 10 * (left + 1))


def test_under_disable_jit(size):
    with jax.disable_jit():
        np.testing.assert_array_equal(total(jnp.ones(2)), size * np.ones(2))
        np.testing.assert_array_equal(auto_tokenize(total)(jnp.ones(2)), size * np.ones(2))


def test_without_arguments():
    barrier = jax.jit(auto_tokenize(lambda: mpi.barrier()))
    assert barrier() is None
    assert barrier() is None
