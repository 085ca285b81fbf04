"""The results of JAX's collectives over MPI, against NumPy."""

import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

#: XLA sends these as they are, and reduces them.
REDUCED = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
]
#: These it sends as bytes, and reduces as types that have them.
WIDENED = ["bool", ml_dtypes.bfloat16]
#: These it can't reduce over MPI.
ONLY_SENT = ["float16", ml_dtypes.float8_e4m3fn]
SENT = [*REDUCED, *WIDENED, *ONLY_SENT]


def values(size, dtype, rows=4, columns=3):
    """Small numbers, whose sums and products are exact in every type, for each process."""
    numbers = 1 + np.arange(size * rows * columns) * 7 % 3
    return numbers.reshape(size * rows, columns).astype(dtype)


def parts(array, size):
    return array.reshape(size, -1, *array.shape[1:])


@pytest.mark.parametrize("dtype", REDUCED)
def test_psum(mesh, over, size, spread, assert_is, dtype):
    x = values(size, dtype)
    y = over(lambda x: jax.lax.psum(x, "i"))(spread(x, mesh, "i"))
    assert_is(y, parts(x, size).sum(0, dtype=dtype))


def test_psum_of_bfloat16(mesh, over, size, spread, assert_is):
    x = values(size, ml_dtypes.bfloat16)
    y = over(lambda x: jax.lax.psum(x, "i"))(spread(x, mesh, "i"))
    assert_is(y, parts(x, size).sum(0, dtype=ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", [d for d in REDUCED if "complex" not in d])
@pytest.mark.parametrize("name", ["max", "min"])
def test_pmax_and_pmin(mesh, over, size, spread, assert_is, dtype, name):
    x = values(size, dtype)
    reduce = getattr(jax.lax, f"p{name}")
    y = over(lambda x: reduce(x, "i"))(spread(x, mesh, "i"))
    assert_is(y, getattr(parts(x, size), name)(0))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_pmean(mesh, over, size, spread, assert_is, dtype):
    x = values(size, dtype)
    y = over(lambda x: jax.lax.pmean(x, "i"))(spread(x, mesh, "i"))
    assert_is(y, parts(x, size).mean(0, dtype=dtype), rtol=1e-6)


@pytest.mark.skipif("TEST_COLLECTIVES" in os.environ, reason="it can over gloo")
@pytest.mark.parametrize("dtype", ONLY_SENT)
def test_psum_of_what_xla_cannot_reduce(mesh, over, size, spread, dtype):
    """The error comes before MPI is called, and later calls work."""
    x = spread(values(size, dtype), mesh, "i")
    # XLA gathers by a sum.
    for collective in (jax.lax.psum, jax.lax.all_gather):
        with pytest.raises(
            Exception, match="Unsupported primitive type for reduction: f16"
        ):
            jax.block_until_ready(over(lambda x, call=collective: call(x, "i"))(x))


@pytest.mark.parametrize("dtype", [*REDUCED, *WIDENED])
def test_all_gather(mesh, over, size, spread, assert_is, dtype):
    x = values(size, dtype)
    gather = over(lambda x: jax.lax.all_gather(x, "i", tiled=True))
    assert_is(gather(spread(x, mesh, "i")), x)


@pytest.mark.parametrize("dtype", REDUCED)
def test_psum_scatter(mesh, over, size, spread, assert_is, dtype):
    x = values(size, dtype, rows=2 * size)
    scatter = over(lambda x: jax.lax.psum_scatter(x, "i", tiled=True), "i")
    assert_is(scatter(spread(x, mesh, "i")), parts(x, size).sum(0, dtype=dtype))


@pytest.mark.parametrize("dtype", SENT)
@pytest.mark.parametrize("shift", [1, -1])
def test_ppermute(mesh, over, size, spread, assert_is, dtype, shift):
    x = values(size, dtype)
    pairs = [(i, (i + shift) % size) for i in range(size)]
    y = over(lambda x: jax.lax.ppermute(x, "i", pairs), "i")(spread(x, mesh, "i"))
    assert_is(y, np.roll(parts(x, size), shift, axis=0).reshape(x.shape))


def test_ppermute_to_some(mesh, over, size, spread, assert_is):
    """Who gets nothing has zeros, and a process may send to itself."""
    x = values(size, "float32")
    pairs = [(0, size - 1)]
    y = over(lambda x: jax.lax.ppermute(x, "i", pairs), "i")(spread(x, mesh, "i"))
    expected = np.zeros_like(parts(x, size))
    expected[size - 1] = parts(x, size)[0]
    assert_is(y, expected.reshape(x.shape))


@pytest.mark.parametrize("dtype", SENT)
def test_all_to_all(mesh, over, size, spread, assert_is, dtype):
    x = values(size, dtype, rows=2 * size)
    swap = over(lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True), "i")
    y = swap(spread(x, mesh, "i"))
    blocks = x.reshape(size, size, 2, x.shape[1])
    assert_is(y, blocks.swapaxes(0, 1).reshape(x.shape))


def test_pbroadcast(mesh, over, size, spread, assert_is):
    x = values(size, "float64")
    root = size - 1
    mine = lambda x: jnp.where(jax.lax.axis_index("i") == root, x, 0)  # noqa: E731
    y = over(lambda x: jax.lax.psum(mine(x), "i"))(spread(x, mesh, "i"))
    assert_is(y, parts(x, size)[root])


@pytest.mark.parametrize("length", [0, 1, 1 << 20])
def test_sizes(mesh, over, size, spread, assert_is, length):
    x = values(size, "float32", rows=1, columns=length)
    y = over(lambda x: jax.lax.psum(x, "i"))(spread(x, mesh, "i"))
    assert_is(y, x.sum(0, keepdims=True, dtype="float32"))


def test_a_loop(mesh, over, size, spread, assert_is):
    def body(x):
        return jax.lax.fori_loop(0, 100, lambda _, x: jax.lax.pmean(x, "i") + 1, x)

    x = np.arange(3.0 * size)
    y = over(body, "i")(spread(x, mesh, "i"))
    expected = np.tile(x.reshape(size, 3).mean(0) + 100, size)
    assert_is(y, expected, rtol=1e-12)


def test_both_axes_of_a_grid(grid, shard_map, size, spread, assert_is):
    """XLA makes a communicator for each row, and for each column."""
    rows, columns = grid.devices.shape
    x = np.arange(4.0 * size).reshape(2 * rows, 2 * columns)

    def body(x):
        return jax.lax.psum(x, "i") + 10 * jax.lax.psum(x, "j")

    specs = {"in_specs": P("i", "j"), "out_specs": P("i", "j")}
    mapped = shard_map(body, mesh=grid, **specs)
    y = jax.jit(mapped)(spread(x, grid, "i", "j"))
    blocks = x.reshape(rows, 2, columns, 2)
    over_i = np.broadcast_to(blocks.sum(0, keepdims=True), blocks.shape)
    over_j = np.broadcast_to(blocks.sum(2, keepdims=True), blocks.shape)
    assert_is(y, (over_i + 10 * over_j).reshape(x.shape))


def test_independent_collectives(mesh, over, size, spread, assert_is):
    """XLA runs them on threads of its own, beside other work."""

    def body(x):
        work = [jnp.sin(x + k) @ jnp.cos(x.T) for k in range(8)]
        sums = [jax.lax.psum(w, "i") for w in work]
        gathered = [jax.lax.all_gather(w, "i").sum(0) for w in work]
        return sum(sums) - sum(gathered)

    x = np.linspace(0, 1, size * 64 * 64).reshape(size * 64, 64)
    y = over(body, "i")(spread(x, mesh, "i"))
    assert_is(y, np.zeros((size * 64, 64)), atol=1e-9)
