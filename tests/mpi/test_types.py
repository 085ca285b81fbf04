"""Every data type that moves, and what happens to the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi

TYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float32 float64 complex64 complex128"
).split()


@pytest.fixture(autouse=True)
def enable_x64():
    old = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", old)


@pytest.mark.parametrize("dtype", TYPES)
def test_types_move(dtype, rank, size):
    x = jnp.asarray([rank, 1, 0]).astype(dtype)
    gathered = mpi.allgather(x)
    assert gathered.dtype == dtype
    expected = np.array([[r, 1, 0] for r in range(size)]).astype(dtype)
    np.testing.assert_array_equal(gathered, expected)


@pytest.mark.parametrize("dtype", [t for t in TYPES if t != "bool"])
def test_types_add_up(dtype, rank, size):
    x = jnp.asarray([rank + 1, 2]).astype(dtype)
    if dtype.startswith("complex"):
        x = x * (1 + 2j)
    total = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM))(x)
    assert total.dtype == dtype
    expected = np.array([size * (size + 1) // 2, 2 * size]).astype(dtype)
    np.testing.assert_array_equal(
        total, expected * (1 + 2j) if dtype.startswith("complex") else expected
    )


def test_bool_reductions(rank, size):
    x = jnp.asarray([rank == 0, True, False])
    np.testing.assert_array_equal(mpi.allreduce(x, MPI.LOR), [True, True, False])
    np.testing.assert_array_equal(mpi.allreduce(x, MPI.LAND), [size == 1, True, False])


def test_bitwise_reduction(rank, size):
    result = mpi.allreduce(jnp.asarray(1 << rank, jnp.uint32), MPI.BOR)
    assert result == 2**size - 1


def test_extremes_survive(rank):
    for dtype in ("int64", "uint64"):
        limits = jnp.asarray([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        np.testing.assert_array_equal(mpi.bcast(limits, 0), limits)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_types_are_refused(transform, dtype):
    x = jnp.ones(3, dtype)
    with pytest.raises(
        TypeError,
        match=f'allgather got an array of type {dtype} for argument "x", expected one '
        "of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, "
        r"float64, complex64, complex128(\n|$)",
    ):
        transform(mpi.allgather)(x)
