"""Plans of index lists in programs on a mesh, against the same plan outside of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpi4jax
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs
from mpi4jax.unstructured import Plan

pytestmark = pytest.mark.skipif(
    not allows_sharded_programs(), reason="JAX < 0.9.1 has no operations in a shard_map"
)

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


class Fields:
    """Random points of a plan for a mesh, and a field of this process."""

    def __init__(self, mesh, seed):
        random = np.random.default_rng(seed)
        count = int(random.integers(1, 30))
        owners = random.integers(SIZE, size=count)
        has_ghost = random.random((SIZE, count)) < random.choice([0, 0.4])
        order = random.permutation(count)
        ids = order[((owners == RANK) | has_ghost[RANK])[order]]
        self.mesh = mesh
        comm = mpi4jax.axis_comm(mesh, "i")
        self.plan = Plan.from_global(ids, owners[ids] == RANK, comm=comm)
        self.on_mesh = self.plan.on_mesh(mesh, "i")
        values = np.random.default_rng([seed, RANK]).integers(-8, 9, (self.plan.size, 2))
        self.own = values.astype(float)
        self.spread = self.on_mesh.spread(self.own)

    def run(self, function, *arguments, is_checked):
        """This process's rows of what a program gives."""
        program = jax.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=P("i"),
                out_specs=P("i"),
                check_vma=is_checked,
            )
        )
        result = program(self.on_mesh, *arguments)
        return np.asarray(result.addressable_data(0))[: self.plan.size]


@pytest.fixture(params=range(6))
def fields(mesh, request):
    return Fields(mesh, request.param)


@pytest.mark.parametrize("name", ["exchange", "accumulate", "sum_shared", "max"])
def test_values(fields, name, is_checked):
    def call(plan, x):
        if name == "max":
            return plan.accumulate(x, MPI.MAX)
        return getattr(plan, name)(x)

    actual = fields.run(call, fields.spread, is_checked=is_checked)
    np.testing.assert_array_equal(actual, call(fields.plan, jnp.asarray(fields.own)))


def test_blocks(mesh):
    """A point has two rows on a mesh, too."""
    ids = (np.arange(4) + 3 * RANK) % (3 * SIZE)
    comm = mpi4jax.axis_comm(mesh, "i")
    plan = Plan.from_global(ids, np.arange(4) < 3, comm=comm).blocked(2)
    on_mesh = plan.on_mesh(mesh, "i")
    assert on_mesh.size == plan.size == 8
    x = np.arange(8.0) + 10 * RANK
    specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
    program = jax.jit(jax.shard_map(lambda plan, x: plan.exchange(x), **specs))
    result = program(on_mesh, on_mesh.spread(x)).addressable_data(0)
    np.testing.assert_array_equal(result, plan.exchange(x))
    np.testing.assert_array_equal(on_mesh.owned.addressable_data(0), plan.owned)
    with pytest.raises(ValueError, match=r"got an array of shape \(\) for `fields`"):
        on_mesh.spread(3.0)


def test_among_collectives(fields, is_checked):
    """In a loop with a sum over the mesh, started and finished."""

    def turn(plan, _, x):
        request = plan.start(x)
        total = lax.psum(jnp.sum(jnp.where(plan.owned[:, None], x, 0)), "i")
        return plan.finish(request) + total / 64

    actual = fields.run(
        lambda plan, x: lax.fori_loop(0, 3, functools.partial(turn, plan), x),
        fields.spread,
        is_checked=is_checked,
    )
    x = jnp.asarray(fields.own)
    for _ in range(3):
        total = MPI.COMM_WORLD.allreduce(float(x[fields.plan.owned].sum()))
        x = fields.plan.exchange(x) + total / 64
    np.testing.assert_allclose(actual, x, rtol=1e-13)


@pytest.mark.parametrize("name", ["exchange", "accumulate"])
def test_derivatives(fields, name, is_checked):
    """They are those of the plan outside."""

    def pull(plan, x):
        return jax.vjp(getattr(plan, name), x)[1](2 * x)[0]

    def push(plan, x):
        return jax.jvp(getattr(plan, name), (x,), (2 * x,))[1]

    for derivative in (pull, push):
        actual = fields.run(derivative, fields.spread, is_checked=is_checked)
        expected = derivative(fields.plan, jnp.asarray(fields.own))
        np.testing.assert_array_equal(actual, expected)


def test_rows_of_a_mesh(fields):
    counts = MPI.COMM_WORLD.allgather(fields.plan.size)
    assert fields.on_mesh.size == max(counts)
    assert fields.spread.shape == (SIZE * max(counts), 2)
    owned = np.asarray(fields.on_mesh.owned.addressable_data(0))
    np.testing.assert_array_equal(owned[: fields.plan.size], fields.plan.owned)
    assert not owned[fields.plan.size :].any()


@pytest.mark.ranks(2)
def test_errors(fields):
    with pytest.raises(ValueError, match=r"expected a call in a jax.shard_map over its"):
        fields.on_mesh.exchange(jnp.zeros(fields.on_mesh.size))
    reversed_comm = MPI.COMM_WORLD.Split(0, -RANK)
    plan = Plan.from_neighbors({}, 2, comm=reversed_comm)
    with pytest.raises(ValueError, match=r"expected a plan with comm=mpi4jax.axis_comm"):
        plan.on_mesh(fields.mesh)
    reversed_comm.Free()
