"""Many arrays in one, and back, by the core."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._internal.layout.concatenation import MANY, concatenate, split

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
SIZES = [3, 0, 1, 5, 2, 4]
ENDS = np.cumsum(SIZES)[:-1]
DTYPES = ["bool", "int8", "uint16", "int32", "bfloat16", "float32", "complex64", "int4"]


def parts_of(dtype, rows=()):
    random = np.random.default_rng(len(rows))
    return [
        jnp.asarray(random.integers(0, 2, (*rows, size)).astype(jnp.dtype(dtype)))
        for size in SIZES
    ]


def assert_same(actual, expected):
    assert actual.dtype == expected.dtype
    # NumPy compares no short numbers of JAX's.
    np.testing.assert_array_equal(
        *(np.asarray(x).astype(complex) for x in (actual, expected))
    )


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [*((dtype, (2,)) for dtype in DTYPES), *(("float32", x) for x in ((), (2, 3), (0,)))],
)
def test_values(dtype, rows):
    parts = parts_of(dtype, rows)
    whole = jnp.concatenate(parts, -1)
    for way in (lambda f: f, jax.jit):
        assert_same(way(concatenate)(parts), whole)
        result = way(lambda x: split(x, SIZES))(whole)
        for part, expected in zip(result, parts, strict=True):
            assert_same(part, expected)


@pytest.mark.on_cpus
def test_who_copies():
    """The core does, where there are many, of types that it has."""

    def handlers(dtype, count):
        parts = [jnp.zeros(3, dtype)] * count
        there_and_back = jax.jit(lambda parts: split(concatenate(parts), [3] * count))
        text = there_and_back.lower(parts).as_text()
        return text.count("mpi_concatenate_ffi"), text.count("mpi_split_ffi")

    assert handlers("float32", MANY) == (1, 1)
    assert handlers("float32", MANY - 1) == (0, 0)
    assert handlers("int4", MANY) == (0, 0)


def test_on_other_platforms():
    """XLA does it by itself."""

    def call(parts):
        return split(concatenate(parts) * 2, SIZES)

    traced = jax.jit(call).trace(parts_of("float32"))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call" not in text
    assert "stablehlo.concatenate" in text
    assert text.count("stablehlo.slice") == sum(size > 0 for size in SIZES)


def both(parts):
    """A function of parts by the core, and by XLA."""
    weights = jnp.arange(1.0, 1 + sum(SIZES))
    for join, cut in (
        (concatenate, lambda x: split(x, SIZES)),
        (lambda x: jnp.concatenate(x, -1), lambda x: jnp.split(x, ENDS, -1)),
    ):

        def function(parts, join=join, cut=cut):
            result = cut(jnp.sin(join(parts)) * weights)
            return [x * n for n, x in enumerate(result)]  # the first one has no cotangent

        yield function


def test_derivatives():
    parts = parts_of("float32", (2,))
    for transform in (
        lambda f: jax.grad(lambda parts: sum(x.sum() for x in f(parts)[1:])),
        lambda f: lambda parts: jax.jvp(f, (parts,), (parts,)),
        lambda f: lambda parts: jax.linearize(f, parts)[1](parts),
        lambda f: jax.jacrev(lambda x: f([x, *parts[1:]])[3])(parts[0]),
        lambda f: jax.hessian(lambda x: f([x, *parts[1:]])[0].sum())(parts[0]),
    ):
        results = [transform(function) for function in both(parts)]
        result, expected = (r(parts) if callable(r) else r for r in results)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), result, expected
        )


@pytest.mark.parametrize("axes", [0, 1, -1, [0, None, 1, 0, None, 1]])
def test_batches(axes):
    of_each = axes if isinstance(axes, list) else [axes] * len(SIZES)
    parts = [
        x if axis is None else jnp.stack([x, x + 1, 2 * x], axis)
        for x, axis in zip(parts_of("float32", (2,)), of_each, strict=True)
    ]
    result, expected = (jax.vmap(f, in_axes=(of_each,))(parts) for f in both(parts))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), result, expected)


def test_nothing_is_copied_in_a_loop():
    """Parts that go from turn to turn stay where they are."""
    parts = [jnp.zeros(1 << 12)] * 8

    def turn(_, parts):
        return split(concatenate(parts) + 1, [x.size for x in parts])

    loop = jax.jit(lambda parts: jax.lax.fori_loop(0, 3, turn, parts), donate_argnums=0)
    compiled = loop.lower(parts).compile()
    # The array of all parts, before and after the addition.
    assert compiled.memory_analysis().temp_size_in_bytes <= 2 * 8 * parts[0].nbytes + 4096


@pytest.mark.parametrize("way", [lambda f: f, jax.jit, jax.vmap])
def test_a_tree_of_many_leaves(way):
    tree = {str(n): jnp.full((2, 3), n + RANK) for n in range(50)}
    result = way(lambda tree: mpi.tree.allreduce(tree, MPI.SUM))(tree)
    assert all((result[str(n)] == sum(range(n, n + SIZE))).all() for n in range(50))
    everyones = jax.jit(mpi.tree.allgather)(tree)
    for n in range(50):
        expected = n + np.arange(SIZE)[:, None, None] + np.zeros((2, 3))
        np.testing.assert_array_equal(everyones[str(n)], expected)
