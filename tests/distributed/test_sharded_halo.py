"""Halo plans on a mesh do in `jax.shard_map` what plans of a communicator do outside."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import halo
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
DIMS = (2, SIZE // 2) if SIZE % 2 == 0 else (1, SIZE)
NAMES = ("y", "x")
KEY = jax.random.key(5)

pytestmark = [
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1"),
]


@pytest.fixture
def grid_of_mesh():
    return Mesh(np.array(jax.devices()).reshape(DIMS), NAMES)


@functools.cache
def grid_of_ranks(periods):
    return COMM.Create_cart(DIMS, periods)


@pytest.fixture
def run(grid_of_mesh, is_checked, spread):
    """The parts that this process has of what a function of its parts gives."""

    def call(function, *parts):
        """Each process gets its own part, which may have more axes in front."""
        specs = [P(*[None] * (x.ndim - 2), *NAMES) for x in parts]
        whole = [
            spread(whole_of(x), grid_of_mesh, *spec)
            for x, spec in zip(parts, specs, strict=True)
        ]
        mapped = jax.shard_map(
            lambda *xs: jax.tree.map(lambda y: y[None, None], function(*xs)),
            mesh=grid_of_mesh,
            in_specs=tuple(specs),
            out_specs=P(*NAMES),
            check_vma=is_checked,
        )
        results = jax.jit(mapped)(*whole)
        return jax.tree.map(lambda y: np.asarray(y.addressable_data(0))[0, 0], results)

    return call


def whole_of(part):
    """The array of all parts, side by side along the last two axes."""
    rows = np.split(np.array(COMM.allgather(np.asarray(part))), DIMS[0])
    return np.concatenate([np.concatenate(list(row), -1) for row in rows], -2)


@pytest.mark.parametrize("seed", range(12))
def test_as_a_plan_of_a_communicator(run, grid_of_mesh, seed):
    """Exchange, accumulate, and the transpose of each, for several fields at once."""
    random = np.random.default_rng(seed)
    periods = tuple(map(bool, random.integers(0, 2, 2)))
    width = [tuple(map(int, random.integers(0, 3, 2))) for _ in DIMS]
    options = {"corners": bool(random.integers(0, 2))}
    on_mesh = halo.Plan(grid_of_mesh, width, periods=periods, **options)
    on_ranks = halo.Plan(grid_of_ranks(periods), width, **options)
    shape = [sum(of_axis) + int(random.integers(2, 5)) for of_axis in width]
    dtypes = random.choice([np.float64, np.float32, np.complex128], size=2)
    layers = [(), (int(random.integers(1, 3)),)]
    own = np.random.default_rng([seed, RANK])
    fields = [
        own.normal(size=(*n, *shape)).astype(t) for n, t in zip(layers, dtypes, strict=True)
    ]
    cotangents = [own.normal(size=x.shape).astype(x.dtype) for x in fields]

    def check(call, *parts, **tolerance):
        expected, actual = (
            call(on_ranks, *parts),
            run(functools.partial(call, on_mesh), *parts),
        )
        for each, value in zip(actual, expected, strict=True):
            np.testing.assert_allclose(each, value, **tolerance)

    for name in "exchange", "accumulate":
        check(
            lambda plan, *xs, name=name: getattr(plan, name)(list(xs)), *fields, rtol=1e-6
        )

        def pull(plan, *xs, name=name):
            return jax.vjp(getattr(plan, name), list(xs[:2]))[1](list(xs[2:]))[0]

        check(pull, *fields, *cotangents, rtol=1e-6)
    check(lambda plan, *xs: plan.finish(plan.start(list(xs))), *fields)
    real = [np.real(x).copy() for x in fields]
    check(lambda plan, *xs: plan.accumulate(list(xs), op=MPI.MAX), *real)


def test_ghosts_come_and_go(run, grid_of_mesh):
    """Fields have ghost cells inside of the program only."""
    plan = halo.Plan(grid_of_mesh, 1, periods=(True, False))
    reference = halo.Plan(grid_of_ranks((True, False)), 1)
    own = np.random.default_rng(RANK).normal(size=(3, 4))
    with_ghosts = run(lambda x: plan.with_ghosts(x, fill_value=7.0), own)
    np.testing.assert_array_equal(with_ghosts, reference.with_ghosts(own, fill_value=7.0))
    assert np.all(with_ghosts[:, 0] == 7.0) == (RANK % DIMS[1] == 0)
    np.testing.assert_array_equal(
        run(lambda x: plan.without_ghosts(plan.with_ghosts(x)), own), own
    )


def test_loops_and_sums(run, grid_of_mesh):
    """The heat equation, with the norm of each step by psum, and messages in flight."""
    plan = halo.Plan(grid_of_mesh, 1, corners=False)
    reference = halo.Plan(grid_of_ranks((False, False)), 1, corners=False)
    own = np.random.default_rng(RANK).normal(size=(4, 5))

    def heat(exchange, total):
        def step(_, state):
            u, norms = state
            u, inner = exchange(u)
            sums = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
            u = u.at[1:-1, 1:-1].add(0.1 * (sums - 4 * u[1:-1, 1:-1]) + 0 * inner)
            return u, norms + total(jnp.sum(u[1:-1, 1:-1] ** 2))

        return lambda u: lax.fori_loop(0, 4, step, (u, 0 * u[0, 0]))

    def exchange(plan):
        return lambda u: plan.exchange(u, during=lambda u: u[1:-1, 1:-1])

    expected = jax.jit(heat(exchange(reference), lambda x: mpi.allreduce(x, MPI.SUM)))(
        reference.with_ghosts(own)
    )
    actual = run(
        lambda x: heat(exchange(plan), lambda x: lax.psum(x, NAMES) + 0 * x)(
            plan.with_ghosts(x)
        ),
        own,
    )
    for each, value in zip(actual, expected, strict=True):
        np.testing.assert_allclose(each, value, rtol=1e-12)


def test_whole_fields(run, grid_of_mesh):
    """`gather` gives what JAX has as the array, and `scatter` what it has as the part."""
    shape = (3 * DIMS[0], 4 * DIMS[1])
    plan = halo.Plan(grid_of_mesh, 1, shape=shape, periods=(True, False))
    reference = halo.Plan(grid_of_ranks((True, False)), 1, shape=shape)
    whole = np.random.default_rng(0).normal(size=shape)
    own = np.asarray(reference.without_ghosts(reference.scatter(whole)))
    assert plan.local_shape == reference.local_shape == own.shape
    assert plan.shape == reference.shape == shape
    np.testing.assert_array_equal(whole_of(own), whole)

    def body(x):
        parts = plan.scatter(jnp.asarray(whole), fill_value=2.0)
        random = plan.scatter(lambda: jax.random.uniform(KEY, shape), fill_value=2.0)
        return parts, random, plan.gather(plan.with_ghosts(x)), jnp.stack(plan.offset)

    part, random, gathered, offset = run(body, own)
    np.testing.assert_array_equal(part, reference.scatter(whole, fill_value=2.0))
    np.testing.assert_array_equal(
        random, reference.scatter(jax.random.uniform(KEY, shape), fill_value=2.0)
    )
    np.testing.assert_array_equal(gathered, whole)
    assert tuple(offset) == reference.offset


def test_some_axes_of_a_mesh(grid_of_mesh, is_checked, spread):
    """One plan for each of several simulations, along another axis of the mesh."""
    plan = halo.Plan(grid_of_mesh, 1, names="x", periods=[True])
    whole = np.arange(8.0 * SIZE).reshape(DIMS[0], 8 * DIMS[1])
    specs = {"mesh": grid_of_mesh, "in_specs": P(*NAMES), "out_specs": P(*NAMES)}
    mapped = jax.shard_map(plan.with_ghosts, check_vma=is_checked, **specs)
    own = np.asarray(
        jax.jit(mapped)(spread(whole, grid_of_mesh, *NAMES)).addressable_data(0)
    )
    row, column = divmod(RANK, DIMS[1])
    columns = np.arange(8 * column - 1, 8 * column + 9) % (8 * DIMS[1])
    np.testing.assert_array_equal(own, whole[row, columns][None])


@pytest.mark.ranks(2)
def test_what_is_refused(run, grid_of_mesh):
    plan = halo.Plan(grid_of_mesh, 1, shape=(4 * DIMS[0], 4 * DIMS[1]))
    x = np.ones((6, 6))
    with pytest.raises(ValueError, match=r"exchange was called outside of a program on"):
        plan.exchange(x)
    with pytest.raises(ValueError, match="`root` of a plan on a mesh"):
        run(lambda x: plan.gather(x, root=0), x)
    with pytest.raises(ValueError, match="expected a multiple of the"):
        halo.Plan(grid_of_mesh, 1, shape=[4 * count + 1 for count in DIMS])
    with pytest.raises(ValueError, match="expected a boolean for each of the axes"):
        halo.Plan(grid_of_mesh, 1, periods=[True])
    with pytest.raises(ValueError, match="axes and periods of its own"):
        halo.Plan(grid_of_ranks((True, True)), 1, periods=[True, True])
    with pytest.raises(NotImplementedError, match="such as those of a halo.Plan"):
        run(halo.Plan(grid_of_ranks((True, True)), 1).exchange, x)
