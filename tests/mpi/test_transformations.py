"""Derivatives and vmap of allreduce and sendrecv."""

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi


def total(x):
    return mpi.allreduce(x, MPI.SUM)


def test_allreduce_derivatives(rank, size):
    x = jnp.arange(3.0) + rank
    value, tangent = jax.jvp(total, (x,), (x,))
    np.testing.assert_array_equal(value, tangent)
    np.testing.assert_array_equal(tangent, size * np.arange(3.0) + sum(range(size)))
    # The sum is one value that all ranks share: its cotangent is counted once.
    np.testing.assert_array_equal(jax.grad(lambda x: total(x).sum())(x), np.ones(3))

    # A gradient is a rank's own, so the cotangents of all ranks' gradients add up.
    def second(x):
        return jax.grad(lambda x: (total(x) ** 2).sum())(x).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(second))(x), 2 * size * np.ones(3))


def test_transposing_twice_is_the_sum_again(size):
    x = jnp.arange(3.0)

    def transposed(y):
        return jax.linear_transpose(total, x)(y)[0]

    np.testing.assert_array_equal(transposed(x), x)
    (again,) = jax.linear_transpose(transposed, x)(x)
    np.testing.assert_array_equal(again, size * x)
    np.testing.assert_array_equal(jax.vmap(transposed)(jnp.ones((2, 3))), np.ones((2, 3)))


def test_gradient_goes_back_along_the_message(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size

    def loss(x):
        return (mpi.sendrecv(x, x, left, right) * (rank + 1.0)).sum()

    for transform in (lambda f: f, jax.jit):
        gradient = transform(jax.grad(loss))(jnp.ones(2))
        np.testing.assert_array_equal(gradient, (right + 1.0) * np.ones(2))


def test_gradient_of_unequal_shapes(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    template = jnp.zeros(left + 1)

    def loss(x):
        return (mpi.sendrecv(x, template, left, right) * (rank + 1.0)).sum()

    gradient = jax.grad(loss)(jnp.ones(rank + 1))
    np.testing.assert_array_equal(gradient, (right + 1.0) * np.ones(rank + 1))


def test_gradient_of_an_open_chain(rank, size):
    # What the last rank sends to nowhere has no gradient.
    right = rank + 1 if rank + 1 < size else MPI.PROC_NULL
    left = rank - 1 if rank > 0 else MPI.PROC_NULL

    def loss(x):
        return (mpi.sendrecv(x, jnp.zeros(2), left, right) * jnp.array([3.0, 4.0])).sum()

    for transform in (lambda f: f, jax.jit):
        gradient = transform(jax.grad(loss))(jnp.ones(2))
        np.testing.assert_array_equal(gradient, [0, 0] if rank == size - 1 else [3, 4])


def test_vmap_of_sendrecv(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    x = jnp.arange(6.0).reshape(2, 3) + 10 * rank
    template = jnp.zeros(2)

    def shift(x, y):
        return mpi.sendrecv(x, y, left, right)

    expected = np.arange(6.0).reshape(2, 3) + 10 * left
    both = jax.vmap(shift, in_axes=(1, 0), out_axes=1)(x, jnp.zeros((3, 2)))
    np.testing.assert_array_equal(both, expected)
    one = jax.vmap(lambda x: shift(x, template), in_axes=1, out_axes=1)(x)
    np.testing.assert_array_equal(one, expected)


def test_gradient_under_vmap_checkpoint_and_custom_vjp(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size

    @jax.checkpoint
    def step(x):
        return jnp.sin(mpi.sendrecv(x, x, left, right)) * total(x)

    gradient = jax.jit(jax.grad(lambda x: step(x).sum()))(jnp.zeros(3))
    np.testing.assert_array_equal(gradient, np.zeros(3))

    @jax.custom_vjp
    def doubled(x):
        return total(x)

    doubled.defvjp(lambda x: (total(x), None), lambda _, g: (2 * total(g),))
    np.testing.assert_array_equal(
        jax.grad(lambda x: doubled(x).sum())(jnp.ones(2)), 2 * size * np.ones(2)
    )
