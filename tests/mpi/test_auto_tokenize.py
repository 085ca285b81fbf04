"""Blocks: fast, never dropped, and ordered or refused."""

import sys

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


def python_calls(function):
    """How many Python functions run during a call."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_fast_path():
    """A call of a block runs no Python at all; one with JAX's ordered effect does."""
    x = jnp.ones(3)
    block, plain = jax.jit(auto_tokenize(total)), jax.jit(total)
    for function in (block, plain):
        for _ in range(3):
            function(x).block_until_ready()
    assert python_calls(lambda: block(x)) == 1  # the lambda itself
    assert python_calls(lambda: plain(x)) > 10


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
    block = auto_tokenize(lambda x: total(x * x).sum())
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(block)(x), 2 * x)
    np.testing.assert_array_equal(jax.jit(jax.grad(block))(x), 2 * x)
    np.testing.assert_array_equal(jax.grad(jax.jit(block))(x), 2 * x)
    batched = jax.vmap(auto_tokenize(total), in_axes=1, out_axes=1)(jnp.ones((2, 3)))
    np.testing.assert_array_equal(batched, size * np.ones((2, 3)))
    (transposed,) = jax.linear_transpose(auto_tokenize(total), x)(x)
    np.testing.assert_array_equal(transposed, x)


def test_unused_block_is_not_dropped(rank, size):
    first, second, left = shift_twice(rank, size)

    @jax.jit
    def function(x):
        auto_tokenize(first)(x)
        return auto_tokenize(second)(x)

    # Without the first message, the second sendrecv gets it: x instead of 10 x.
    assert function(jnp.float32(rank + 1)) == 10 * (left + 1)


def test_blocks_and_operations_in_one_function_are_ordered(rank, size):
    first, second, left = shift_twice(rank, size)
    for a, b in [
        (auto_tokenize(first), auto_tokenize(second)),
        (auto_tokenize(first), second),
        (first, auto_tokenize(second)),
    ]:

        def function(x, a=a, b=b):
            return a(x), b(x)

        hlo = jax.jit(function).lower(jnp.float32(0)).as_text()
        # The second call waits for a token that comes from the first.
        calls = [line for line in hlo.splitlines() if "@mpi4jax_sendrecv" in line]
        assert len(calls) == 2
        assert "create_token" not in "\n".join(hlo.split(calls[0])[1:])
        results = jax.jit(function)(jnp.float32(rank + 1))
        assert results == (left + 1, 10 * (left + 1))


def test_inner_block_is_dissolved(rank, size):
    first, second, left = shift_twice(rank, size)
    inner = jax.jit(auto_tokenize(first))
    inner(jnp.float32(0))  # JAX remembers the trace with the block in it

    def outer(x):
        def body(i, y):
            inner(x)
            return second(x)

        return jax.lax.fori_loop(0, 3, body, inner(x))

    result = jax.jit(auto_tokenize(outer))(jnp.float32(rank + 1))
    assert result == 10 * (left + 1)


CONFLICT = "can't be kept. Apply auto_tokenize to the outermost function"


def test_block_in_inner_jit_is_refused():
    @jax.jit
    def outer(x):
        return jax.jit(auto_tokenize(total))(x)

    with pytest.raises(RuntimeError, match=CONFLICT):
        outer(jnp.ones(2))


def test_unused_block_in_inner_jit_is_refused_too():
    inner = jax.jit(auto_tokenize(total))
    inner(jnp.ones(2))

    @jax.jit
    def outer(x):
        inner(x)  # dropping this would leave the other ranks waiting
        return x

    with pytest.raises(RuntimeError, match=CONFLICT):
        outer(jnp.ones(2))


def test_block_in_loop_is_refused():
    @jax.jit
    def outer(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: auto_tokenize(total)(y), x)

    with pytest.raises(RuntimeError, match=CONFLICT):
        outer(jnp.ones(2))


@pytest.mark.parametrize("block_first", [True, False])
def test_block_beside_operation_in_loop_is_refused(block_first):
    @jax.jit
    def outer(x):
        if block_first:
            x = auto_tokenize(total)(x)
        x = jax.lax.fori_loop(0, 3, lambda i, y: mpi.allreduce(y, MPI.SUM), x)
        return x if block_first else auto_tokenize(total)(x)

    with pytest.raises(RuntimeError, match=r"auto_tokenize\(total\) and allreduce"):
        outer(jnp.ones(2))


def test_under_disable_jit(size):
    with jax.disable_jit():
        np.testing.assert_array_equal(total(jnp.ones(2)), size * np.ones(2))
        np.testing.assert_array_equal(auto_tokenize(total)(jnp.ones(2)), size * np.ones(2))


def test_without_arguments():
    barrier = jax.jit(auto_tokenize(lambda: mpi.barrier()))
    assert barrier() is None
    assert barrier() is None
