"""Values that all processes share: their derivatives, against programs without MPI."""

import functools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax._internal import shared as module
from mpi4jax._internal.environment import settings
from mpi4jax._internal.xla.call_sites import relative_path
from mpi4jax.experimental import tokens

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
FILE = relative_path(__file__)

jits = pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])

pytestmark = pytest.mark.usefixtures("enable_x64")


def total(x):
    return mpi.allreduce(x, op=MPI.SUM)


def assert_close(actual, expected, tolerance=1e-9):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, tolerance, tolerance),
        actual,
        expected,
    )


# Random programs. A value is either one that all processes share, or one of each process.


class Here:
    """A program in its processes."""

    own = staticmethod(lambda function, *values: function(RANK, *values))
    shared = staticmethod(mpi.shared)
    total = staticmethod(total)
    gradient = staticmethod(jax.grad)

    @staticmethod
    def repeat(count, step, state):
        return jax.lax.scan(
            lambda state, n: (step(state, n), None), state, np.arange(count)
        )[0]


class Alone:
    """Calls in one process: a list of all values stands for the values of all processes."""

    gradient = staticmethod(jax.grad)

    @staticmethod
    def own(function, *values):
        return [function(rank, *(value[rank] for value in values)) for rank in range(SIZE)]

    @staticmethod
    def shared(value):
        return [value] * SIZE

    @staticmethod
    def total(values):
        return functools.reduce(functools.partial(jax.tree.map, jnp.add), values)

    @staticmethod
    def repeat(count, step, state):
        for n in range(count):
            state = step(state, n)
        return state


def mixed(w, rank, x, y):
    """What a process computes by itself of a shared tree and an array of its own."""
    a, b = x["a"], x["b"]
    return jnp.sin((rank + 1.5) * a * w) * y + b[::-1] * jnp.cos(y) / (rank + 1)


def random_program(seed):
    """A program of a shared tree and an array of each process, whose result is shared."""
    generator = np.random.default_rng(seed)
    steps = [
        (str(name), float(generator.uniform(0.5, 1.5)))
        for name in generator.choice(
            ["own", "sum", "scan", "vmap", "checkpoint", "grad", "own_grad"], 3
        )
    ]

    def program(world, shared, own):
        def mix(w, shared, own):
            return world.own(functools.partial(mixed, w), world.shared(shared), own)

        def loss(w, shared, own):
            return jnp.sum(world.total(mix(w, shared, own)) ** 2) / 9

        def add(shared, x):
            return {"a": jnp.sin(shared["a"] + x), "b": shared["b"] * jnp.cos(x)}

        for name, w in steps:
            if name == "own":
                own = mix(w, shared, own)
            elif name == "sum":
                shared = add(shared, world.total(mix(w, shared, own)))
            elif name == "scan":

                def step(state, n, w=w):
                    shared, own = state
                    own = mix(w + n, shared, own)
                    return add(shared, world.total(own)), own

                shared, own = world.repeat(2, step, (shared, own))
            elif name == "vmap":

                def of_member(a, w=w, shared=shared, own=own):
                    return world.total(mix(w, {"a": a, "b": shared["b"]}, own))

                members = jnp.stack([shared["a"], 2 * shared["b"], shared["a"] ** 2])
                shared = add(shared, jax.vmap(of_member)(members).sum(0))
            elif name == "checkpoint":
                own = jax.checkpoint(functools.partial(mix, w))(shared, own)
            elif name == "grad":
                slope = world.gradient(functools.partial(loss, w))(shared, own)
                shared = jax.tree.map(lambda x, g: jnp.sin(x + g), shared, slope)
            else:
                slope = world.gradient(functools.partial(loss, w), argnums=1)(shared, own)
                own = jax.tree.map(lambda x, g: jnp.cos(x * g), own, slope)
        return loss(1.0, shared, own)

    return program


@pytest.mark.parametrize("jit", [jax.jit])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed, jit):
    program = random_program(seed)
    generator = np.random.default_rng([seed, 1])
    shared, direction = (
        {
            "a": jnp.asarray(generator.normal(size=3)),
            "b": jnp.asarray(generator.normal(size=3)),
        }
        for _ in range(2)
    )
    owns = [jnp.asarray(generator.normal(size=3)) for _ in range(SIZE)]

    def derivatives(world, own):
        def run(shared, own):
            return program(world, shared, own)

        def slope(shared):
            gradient = jax.grad(run)(shared, own)
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))

        value, gradients = jax.value_and_grad(run, argnums=(0, 1))(shared, own)
        _, tangent = jax.jvp(lambda x: run(x, own), (shared,), (direction,))
        return value, *gradients, tangent, jax.grad(slope)(shared)

    value, of_shared, of_own, tangent, of_slope = jax.jit(
        functools.partial(derivatives, Alone)
    )(owns)
    expected = value, of_shared, of_own[RANK], tangent, of_slope
    actual = jit(functools.partial(derivatives, Here))(owns[RANK])
    assert_close(actual, expected)


@pytest.mark.parametrize("seed", [1, 5])
def test_random_programs_without_jit(seed):
    test_random_programs(seed, lambda function: function)


# Trees and messages.


@jits
def test_the_value_is_unchanged(jit, calls_of):
    tree = {"a": jnp.arange(3.0), "n": (jnp.arange(2), True, 2.5), "none": None}
    result, calls = calls_of(jit(mpi.shared), tree)
    assert calls == Counter()
    assert jax.tree.structure(result) == jax.tree.structure(tree)
    for x, y in zip(jax.tree.leaves(result), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == jnp.result_type(y)
    assert mpi.shared({}) == {}


@jits
def test_one_message_for_each_type(jit, calls_of):
    tree = {
        "small": [jnp.full(n, 2.0) for n in range(1, 9)],
        "float32": jnp.ones(3, np.float32),
        "large": jnp.ones(5000),
        "n": jnp.arange(4),
    }

    def loss(tree):
        tree = mpi.shared(tree)
        inexact = [x for x in jax.tree.leaves(tree) if x.dtype.kind == "f"]
        return sum(jnp.sum(x**2) for x in inexact) * (RANK + 1) * tree["n"][1]

    gradient = jit(jax.grad(loss, allow_int=True))
    jax.block_until_ready(gradient(tree))
    result, calls = calls_of(gradient, tree)
    assert calls == Counter({"Allreduce": 3})
    factor = SIZE * (SIZE + 1)
    assert_close(result["small"], jax.tree.map(lambda x: x * factor, tree["small"]))
    assert_close(result["large"], tree["large"] * factor)
    assert_close(result["float32"], tree["float32"] * factor, 1e-5)


def test_transposes():
    x = jnp.arange(3.0)
    transpose = jax.linear_transpose(mpi.shared, x)
    (back,) = transpose(x * (RANK + 1))
    assert_close(back, x * SIZE * (SIZE + 1) / 2)
    # The transpose of that is the identity, as for any allreduce.
    (again,) = jax.linear_transpose(lambda y: transpose(y)[0], x)(x)
    assert_close(again, x)
    _, tangent = jax.jvp(mpi.shared, (x,), (2 * x,))
    assert_close(tangent, 2 * x)


def test_a_batch_in_one_message(calls_of):
    def loss(x, y):
        x, y = mpi.shared((x, y))
        return (RANK + 1) * jnp.sum(x**2 * y)

    gradient = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1)), in_axes=(1, None)))
    x, y = jnp.arange(12.0).reshape(3, 4), jnp.arange(3.0)
    jax.block_until_ready(gradient(x, y))
    (of_x, of_y), calls = calls_of(gradient, x, y)
    assert calls == Counter({"Allreduce": 1})
    factor = SIZE * (SIZE + 1) / 2
    assert_close(of_x, factor * 2 * (x * y[:, None]).T)
    assert_close(of_y, factor * (x**2).T)


def test_jacobian():
    def own(x):
        return (RANK + 1) * jnp.sin(mpi.shared(x))

    x = jnp.arange(3.0)
    expected = np.diag(np.cos(x)) * SIZE * (SIZE + 1) / 2
    assert_close(jax.jacrev(own)(x), expected)
    assert_close(jax.jit(jax.jacrev(own))(x), expected)


def test_complex_numbers():
    def loss(z):
        return (RANK + 1) * jnp.abs(mpi.shared(z)) ** 2

    z = jnp.asarray(1 + 2j)
    factor = SIZE * (SIZE + 1) / 2
    assert_close(jax.grad(loss)(z), factor * 2 * z.conj())


def test_other_communicators():
    half = COMM.Split(RANK % 2, RANK)

    def loss(x):
        return (half.rank + 1) * mpi.shared(x, comm=half)

    assert jax.grad(loss)(1.0) == half.size * (half.size + 1) / 2
    half.Free()
    with pytest.raises(ValueError, match="shared"):
        mpi.shared(jnp.ones(2), comm=half)


def test_the_forms_with_tokens():
    token = mpi4jax.create_token()
    x, passed = tokens.shared(jnp.ones(2), token=token)
    assert passed is token
    np.testing.assert_array_equal(x, np.ones(2))
    np.testing.assert_array_equal(tokens.shared(jnp.ones(2)), np.ones(2))


def test_what_is_no_array():
    with pytest.raises(
        TypeError, match=re.escape("shared: `x['layers'][1]` must be an array")
    ):
        mpi.shared({"layers": [1.0, "relu"]})


# Comparing the values.


@pytest.fixture
def compared(compare_calls, monkeypatch):
    monkeypatch.setattr(module, "settings", settings._replace(check=True))


def report_of(function, *args):
    with pytest.raises(Exception, match="MPI4JAX_CHECK") as error:
        jax.block_until_ready(function(*args))
    text = re.sub(r" \[executable_name='\w*'\]$", "", str(error.value))
    return [line.strip() for line in text.splitlines()]


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("compared")
@jits
def test_the_report(jit):
    last = SIZE - 1
    tree = {"a": jnp.ones(3), "b": [jnp.ones((2, 2)), jnp.ones(4).at[2].add(1e-15 * RANK)]}

    @jit
    def program(tree):
        return mpi.shared(tree)

    line = program.__wrapped__ if hasattr(program, "__wrapped__") else program
    line = f"{FILE}:{line.__code__.co_firstlineno + 2} in "
    first, row, finding = report_of(program, tree)
    assert "a value that is not the same on all ranks (MPI4JAX_CHECK)" in first
    assert "in shared #" in row
    assert line in row
    assert row.startswith("ranks 0" if SIZE > 1 else "rank 0")
    assert finding == (
        "`x['b'][1]` of rank 1 is not that of rank 0, expected the same to the last bit."
    )
    # The first leaf that differs, even if another rank differs in it.
    tree["a"] = jnp.ones(3).at[0].add(last == RANK)
    *_, finding = report_of(program, tree)
    assert finding.startswith(f"`x['a']` of rank {last} is not")
    assert total(1.0) == SIZE


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize(
    ("of_first", "of_others"),
    [
        (np.float64(0.0), np.float64(-0.0)),
        (
            np.uint32([1, 0x7FC00000]).view(np.float32),
            np.uint32([1, 0x7FC00001]).view("f4"),
        ),
        (np.int64([1, 2**40]), np.int64([1, 2**41])),
        (np.array([True, False]), np.array([False, True])),
        (np.arange(70000.0), np.arange(70000.0)[::-1].copy()),
        (np.complex64([1 + 2j]), np.complex64([2 + 1j])),
        (jnp.asarray([1, 2], jnp.bfloat16), jnp.asarray([1, 2.02], jnp.bfloat16)),
        (jnp.asarray([1, 2], jnp.int4), jnp.asarray([1, 3], jnp.int4)),
        (np.int8([1, -1]), np.int8([1, 1])),
    ],
    ids="zeros nan int64 bool order complex bfloat16 int4 int8".split(),
)
@jits
def test_each_bit(jit, of_first, of_others):
    program = jit(mpi.shared)
    for equal in (of_first, of_others):
        np.testing.assert_array_equal(program(equal), equal)
    *_, finding = report_of(program, of_first if RANK == 0 else of_others)
    assert finding.startswith("`x` of rank 1 is not that of rank 0")


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("compared")
def test_other_shapes():
    *_, finding = report_of(mpi.shared, jnp.ones(3 if RANK else 4))
    assert "trees that differ in their structure" in finding
    assert total(1.0) == SIZE


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("compared")
def test_within_loops_and_batches():
    @jax.jit
    def in_scan(x, end):
        def step(x, n):
            return mpi.shared(jnp.where(n == end, x + RANK, x)), None

        return jax.lax.scan(step, x, jnp.arange(3))[0]

    np.testing.assert_array_equal(in_scan(jnp.ones(2), 5), np.ones(2))
    report_of(in_scan, jnp.ones(2), 1)

    in_batch = jax.vmap(lambda x, y: mpi.shared((x, y)), in_axes=(1, None))
    x, y = jnp.ones((2, 3)), jnp.ones(2)
    np.testing.assert_array_equal(jax.jit(in_batch)(x, y)[0], np.ones((3, 2)))
    *_, finding = report_of(in_batch, x.at[1, 2].add(RANK), y)
    assert finding.startswith("`x[0]` of rank 1")
    *_, finding = report_of(jax.jit(in_batch), x, y + RANK)
    assert finding.startswith("`x[1]` of rank 1")


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("seed", range(2))
def test_random_programs_that_compare(seed):
    test_random_programs(seed, jax.jit)


@pytest.mark.usefixtures("compared")
def test_transposes_that_compare():
    test_transposes()


@pytest.mark.usefixtures("compared")
@pytest.mark.ranks(2)
def test_a_gradient_that_differs():
    """What is differentiated is compared, and no tangent or cotangent."""

    def loss(x):
        return (RANK + 1) * jnp.sum(mpi.shared(x) ** 2)

    assert_close(jax.grad(loss)(jnp.ones(2)), np.full(2, SIZE * (SIZE + 1.0)))
    report_of(jax.grad(loss), jnp.ones(2) + RANK)
