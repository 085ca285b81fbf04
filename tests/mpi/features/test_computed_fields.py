"""Whole fields that a function computes, of which each process computes its part.

A seed makes a random function and random points, which a failure prints. More of them:

    TEST_SEEDS=100:600 python -P -m pytest tests/mpi/features/test_computed_fields.py
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from sample import seeds

from mpi4jax import files, halo, pencil, unstructured
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.at_points import evaluate, point_numbers
from mpi4jax._internal.xla.traced import Traced

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
KEY = jax.random.key(7)
ROWS, COLUMNS = 2 * SIZE + 1, 6


class RandomFunction:
    """A random program of a random shape, without arguments."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng(seed)
        self.shape = tuple(map(int, random.integers(1, 6, size=random.integers(1, 4))))
        self.count = int(random.integers(1, 12))
        self.seed = seed

    def __call__(self):
        # Numbers that are exact, so that the order of sums does not matter.
        random = np.random.default_rng(self.seed)
        arrays = [self.leaf(random)]
        for _ in range(self.count):
            name = random.choice([x for x in dir(self) if x.startswith("make_")])
            x = arrays[random.integers(len(arrays))]
            arrays.append(getattr(self, name)(random, x, arrays))
        return arrays[-1]

    def leaf(self, random):
        shape, kind = self.shape, random.integers(5)
        if kind == 0:
            return jnp.asarray(random.integers(-9, 9, shape), jnp.float32)
        if kind == 1:
            return jax.random.randint(jax.random.key(3), shape, -9, 9).astype(jnp.float32)
        if kind == 2:
            axis = int(random.integers(len(shape)))
            return jax.lax.broadcasted_iota(jnp.float32, shape, axis)
        if kind == 3:
            axis = int(random.integers(len(shape)))
            line = jnp.linspace(0, 8, shape[axis])
            return jnp.broadcast_to(
                jnp.expand_dims(line, [n for n in range(len(shape)) if n != axis]), shape
            )
        return jnp.full(shape, 3.0)

    def make_sum(self, random, x, arrays):
        return x + self.leaf(random)

    def make_product(self, random, x, arrays):
        return jax.jit(lambda x, y: (x * y, x - y))(x, self.leaf(random))[1]

    def make_choice(self, random, x, arrays):
        return jnp.where(x > 0, x, arrays[random.integers(len(arrays))])

    def make_transposition(self, random, x, arrays):
        order = random.permutation(x.ndim)
        return (x.transpose(order) + 1).transpose(np.argsort(order))

    def make_other_axes(self, random, x, arrays):
        axis = int(random.integers(x.ndim + 1))
        return jnp.squeeze(jnp.floor(jnp.expand_dims(x, axis) / 2), axis)

    def make_stack(self, random, x, arrays):
        axis = int(random.integers(x.ndim + 1))
        stack = jnp.stack([x, arrays[random.integers(len(arrays))], x + 1], axis)
        return stack.sum(axis) if random.random() < 0.5 else stack.max(axis)

    def make_concatenation(self, random, x, arrays):
        axis = int(random.integers(x.ndim))
        joined = jnp.concatenate([x, x + 1], axis)
        return jax.lax.slice_in_dim(joined, 1, 1 + x.shape[axis], axis=axis)

    def make_row(self, random, x, arrays):
        axis = int(random.integers(x.ndim))
        return x - x.max(axis, keepdims=True)

    def make_whole(self, random, x, arrays):
        """An operation that needs all points."""
        axis = int(random.integers(x.ndim))
        kind = random.integers(4)
        if kind == 0:
            return jnp.sort(x, axis)
        if kind == 1:
            return jnp.cumsum(x, axis)
        if kind == 2:
            return jnp.roll(x, 1, axis)
        return jax.lax.scan(lambda c, y: (c + y, c - y), 0 * x[0], x)[1]

    def make_custom(self, random, x, arrays):
        return jax.nn.relu(x)

    def make_integer(self, random, x, arrays):
        return jax.lax.bitcast_convert_type(x.astype(jnp.int32), jnp.uint32) % 7 + 0.0


@pytest.mark.parametrize("seed", seeds(60))
def test_random_programs(seed):
    function = RandomFunction(seed)
    whole = np.asarray(jax.jit(function)())
    random = function.random
    results, expected = [], []
    for _ in range(random.integers(1, 4)):
        axes = random.permutation(whole.ndim)[: random.integers(whole.ndim + 1)]
        points = {
            int(n): random.integers(whole.shape[n], size=random.integers(6)) for n in axes
        }
        results.append(points)
        value = whole
        for axis, index in points.items():
            value = np.take(value, index, axis)
        expected.append(value)
    traced = Traced(lambda: [function() for _ in results])
    parts = jax.jit(lambda consts: evaluate(traced.jaxpr, consts, results))(traced.consts)
    for part, value in zip(parts, expected, strict=True):
        assert part.dtype == value.dtype
        np.testing.assert_array_equal(part, value)


@pytest.mark.parametrize(
    "shape", [(3, 4), (1 << 33, 5), (7, 1 << 20, 1 << 20), (9, 1 << 32, 1 << 31)]
)
def test_numbers_of_points(shape):
    """Bits are a hash of a number of 64 bits, also where JAX has none."""
    random = np.random.default_rng(0)
    index = [random.integers(min(n, 1 << 31), size=5) for n in shape]
    index[0][:2] = shape[0] - 1, 0
    numbers = [jnp.asarray(n % (1 << 32), jnp.uint32) for n in index]
    high, low = point_numbers(shape, tuple(range(len(shape))), numbers)
    stride, expected = 1, np.zeros((), np.uint64)
    for axis in reversed(range(len(shape))):
        column = index[axis].astype(np.uint64) % np.uint64(1 << 32) * np.uint64(stride)
        expected = expected + column.reshape(-1, *(1,) * (len(shape) - 1 - axis))
        stride = stride * shape[axis] % (1 << 64)
    actual = np.asarray(high, np.uint64) << np.uint64(32) | np.asarray(low, np.uint64)
    np.testing.assert_array_equal(actual, expected)


#: Distributions whose numbers are exact.
EXACT = {
    "uniform": jax.random.uniform,
    "randint": lambda key, shape: jax.random.randint(key, shape, -3, 1000),
    "bits": lambda key, shape: jax.random.bits(key, shape, jnp.uint8),
    "bernoulli": lambda key, shape: jax.random.bernoulli(key, 0.3, shape),
    "permutation": lambda key, shape: jax.random.permutation(
        key, jnp.arange(np.prod(shape)).reshape(shape)
    ),
    "rademacher": jax.random.rademacher,
}
#: Those with a formula. XLA may round it once in one program and twice in another, or in
#: vectors and in what remains of a loop.
ROUNDED = {
    "normal": jax.random.normal,
    "complex": lambda key, shape: jax.random.normal(key, shape, jnp.complex64),
    "bfloat16": lambda key, shape: jax.random.normal(key, shape, jnp.bfloat16),
    "interval": lambda key, shape: jax.random.uniform(key, shape, minval=-1, maxval=3),
    "exponential": jax.random.exponential,
    "truncated": lambda key, shape: jax.random.truncated_normal(key, -1, 1, shape),
    "laplace": jax.random.laplace,
}

PLANS = {
    "halo": lambda cart: halo.Plan(cart, 1, axes=[0], shape=[ROWS]),
    "layout": lambda cart: pencil.Layout(cart, (ROWS, COLUMNS), [0]),
    "other axis": lambda cart: pencil.Layout(cart, (ROWS, COLUMNS), [-1]),
    "rows": lambda cart: rows_of_points(),
}


def rows_of_points():
    """A random partition of the rows, with a ghost or two."""
    owners = np.random.default_rng(1).integers(SIZE, size=ROWS)
    own = np.flatnonzero(owners == RANK)
    ghosts = np.flatnonzero(owners == (RANK + 1) % SIZE)[:2] if SIZE > 1 else own[:0]
    ids = np.concatenate([own, ghosts])[::-1]
    owned = np.arange(len(ids))[::-1] < len(own)
    return unstructured.Plan.from_global(ids, owned, comm=COMM)


@pytest.fixture(params=PLANS)
def plan(request):
    cart = COMM.Create_cart([SIZE], periods=[True])
    yield PLANS[request.param](cart)
    cart.Free()


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_the_part_of_the_whole(plan, name, wrap):
    """On any number of processes, the numbers are those of one."""
    distribution = (EXACT | ROUNDED)[name]
    whole = jax.jit(lambda: distribution(KEY, (ROWS, COLUMNS)))()
    part = wrap(lambda: plan.scatter(lambda: distribution(KEY, (ROWS, COLUMNS))))()
    expected = plan.scatter(whole)
    assert part.dtype == expected.dtype
    if name in EXACT:
        np.testing.assert_array_equal(part, expected)
    else:
        epsilon = float(jnp.finfo(part.dtype).eps)
        part, expected = (
            x.astype(jnp.promote_types(x.dtype, np.float32)) for x in (part, expected)
        )
        np.testing.assert_allclose(part, expected, rtol=32 * epsilon, atol=32 * epsilon)


def test_waves(plan):
    """Products and sums, which XLA may round once in one program and twice in another."""

    def waves():
        x, y = jnp.linspace(0, 3, ROWS)[:, None], jnp.arange(COLUMNS)
        amplitudes = enumerate(jax.random.uniform(KEY, 4))
        return sum(a * jnp.sin(n * x + y) for n, a in amplitudes)

    part = jax.jit(lambda: plan.scatter(waves))()
    np.testing.assert_allclose(part, plan.scatter(waves()), rtol=1e-5, atol=1e-6)


def test_trees_and_axes_in_front(plan):
    """A tree, axes that are not divided, NumPy's arrays, and a fill value."""
    lead = (2,) if isinstance(plan, pencil.Layout) else ()

    def fields():
        noise = jax.random.uniform(KEY, (*lead, ROWS, COLUMNS))
        return {"u": 2 * noise, "v": (np.ones((ROWS, COLUMNS), np.int32), noise > 0.5)}

    parts, expected = plan.scatter(fields), plan.scatter(jax.jit(fields)())
    assert jax.tree.structure(parts) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, parts, expected)


def test_the_edges_of_a_grid():
    cart = COMM.Create_cart([SIZE], periods=[False])
    plan = halo.Plan(cart, [(1, 2)], axes=[0], shape=[ROWS])
    whole = jnp.arange(ROWS * 3.0).reshape(ROWS, 3)
    part = plan.scatter(lambda: 1 * whole, fill_value=-5)
    np.testing.assert_array_equal(part, plan.scatter(whole, fill_value=-5))
    staggered = jnp.arange(ROWS + 1.0)[:, None]
    part = plan.scatter(lambda: 1 * staggered)
    np.testing.assert_array_equal(part, plan.scatter(staggered))
    cart.Free()


def test_derivatives_and_maps(plan):
    whole = jnp.linspace(1, 2, ROWS)[:, None] * jnp.ones(COLUMNS)

    def loss(scale, is_computed):
        def field():
            return jnp.sin(scale * whole) * jax.random.uniform(KEY, whole.shape)

        return jnp.sum(plan.scatter(field if is_computed else field()) ** 2)

    scales = jnp.array([0.5, 1.5])
    for transform in (jax.grad, jax.hessian, lambda f: f):
        mapped = jax.jit(jax.vmap(transform(loss), (0, None)), static_argnums=1)
        np.testing.assert_allclose(
            mapped(scales, True), mapped(scales, False), rtol=2e-5, atol=1e-5
        )


def test_only_the_part_is_computed(plan):
    """The compiled program has no array of the whole size."""
    shape = ROWS * 1000, COLUMNS
    cart = COMM.Create_cart([SIZE], periods=[True])
    if isinstance(plan, unstructured.Plan):
        own = np.arange(RANK, shape[0], SIZE)
        large = unstructured.Plan.from_global(own, np.ones(len(own), bool), comm=COMM)
    elif isinstance(plan, halo.Plan):
        large = halo.Plan(cart, 1, axes=[0], shape=shape[:1])
    else:
        large = pencil.Layout(cart, shape, plan.axes)
    whole = re.compile(rf"\[{shape[0]},{shape[1]}\]")

    def program(key):
        x = jnp.linspace(0, 1, shape[0])[:, None]
        return large.scatter(lambda: jnp.exp(-(x**2)) * jax.random.normal(key, shape))

    text = jax.jit(program).lower(KEY).compile().as_text()
    if SIZE > 1:
        assert not whole.search(text)
    assert whole.search(
        jax.jit(lambda key: jax.random.normal(key, shape)).lower(KEY).compile().as_text()
    )
    cart.Free()


def test_effects_stay(plan, capfd):
    """Prints and messages of a function take place."""

    def field():
        jax.debug.print("computing")
        total = mpi.allreduce(jnp.float32(RANK), MPI.SUM)
        return jnp.full((ROWS, COLUMNS), total)

    part = jax.block_until_ready(jax.jit(lambda: plan.scatter(field))())
    jax.effects_barrier()
    assert np.all(part == SIZE * (SIZE - 1) / 2)
    assert "computing" in capfd.readouterr().out


def test_a_file_is_the_same(plan, tmp_path):
    """Processes write computed fields as one process writes whole ones."""
    if isinstance(plan, pencil.Layout) and plan.axes != (0,):
        pytest.skip("one layout is enough")
    folder = COMM.bcast(str(tmp_path / "state"))
    whole = jax.random.uniform(KEY, (ROWS, COLUMNS))
    files.save(
        folder, plan.scatter(lambda: jax.random.uniform(KEY, (ROWS, COLUMNS))), plan=plan
    )
    np.testing.assert_array_equal(files.load(folder), whole)


def test_wrong_functions(plan):
    name = repr(plan)[1:].partition(":")[0] + ".scatter"
    with pytest.raises(
        TypeError,
        match=f"{name} got .* for argument `fields`, expected "
        "arrays, or a function without arguments that computes them",
    ):
        plan.scatter(lambda x: x)
    with pytest.raises(
        ValueError, match=f"{name} got root=0 with a function that computes"
    ):
        plan.scatter(lambda: jnp.zeros((ROWS, COLUMNS)), root=0)
    with pytest.raises(ValueError, match=f"{name} got an array of shape"):
        plan.scatter(lambda: jnp.zeros((ROWS + 3, COLUMNS + 3)))
    with pytest.raises(TypeError, match=f"{name}: `fields` must be an array or a number"):
        plan.scatter(lambda: "field")
    with pytest.raises(RuntimeError, match="on purpose"):
        plan.scatter(raises)


def raises():
    raise RuntimeError("on purpose")
