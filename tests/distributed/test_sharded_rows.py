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
KEY = jax.random.key(5)


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
        owned, comm = owners[ids] == RANK, mpi4jax.axis_comm(mesh, "i")
        self.plan = Plan.from_global(ids, owned, comm=comm)
        self.on_mesh = Plan.from_global(ids, owned, comm=mesh, names="i")
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
    plan, on_mesh = (
        Plan.from_global(ids, np.arange(4) < 3, comm=place).blocked(2)
        for place in (comm, mesh)
    )
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
    """They are the same as for the plan outside."""

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


def test_whole_fields(fields, is_checked):
    """`gather` and `scatter` give in a program what they give outside."""
    plan = fields.plan
    whole = np.asarray(plan.gather(jnp.asarray(fields.own)))

    def body(plan, x):
        gathered = plan.gather(x)
        assert gathered.shape == whole.shape
        computed = plan.scatter(lambda: jax.random.randint(KEY, whole.shape, -9, 9))
        return plan.scatter(2 * gathered) + plan.scatter(jnp.asarray(whole)) + computed

    actual = fields.run(body, fields.spread, is_checked=is_checked)
    random = jax.random.randint(KEY, whole.shape, -9, 9)
    np.testing.assert_array_equal(actual, plan.scatter(3 * whole + random))


def test_own_rows(fields, is_checked):
    """`without_ghosts` gives own rows and padding, `with_ghosts` takes them."""
    counts = MPI.COMM_WORLD.allgather(int(fields.plan.owned.sum()))

    def own(plan, x):
        rows = plan.without_ghosts(x)
        assert rows.shape == (max(counts), 2)
        return rows

    actual = fields.run(own, fields.spread, is_checked=is_checked)[: counts[RANK]]
    expected = fields.plan.without_ghosts(jnp.asarray(fields.own))
    np.testing.assert_array_equal(actual, expected)

    def there_and_back(plan, x):
        return plan.with_ghosts(3 * own(plan, x))

    actual = fields.run(there_and_back, fields.spread, is_checked=is_checked)
    np.testing.assert_array_equal(actual, fields.plan.with_ghosts(3 * expected))
    gradient = fields.run(
        lambda plan, x: jax.grad(lambda x: jnp.sum(there_and_back(plan, x) ** 2))(x),
        fields.spread,
        is_checked=is_checked,
    )
    plan = fields.plan

    def loss(x):
        return jnp.sum(plan.with_ghosts(3 * plan.without_ghosts(x)) ** 2)

    np.testing.assert_array_equal(gradient, jax.grad(loss)(jnp.asarray(fields.own)))


def test_facts_outside_of_the_program(fields):
    plan, on_mesh = fields.plan, fields.on_mesh
    for name in ("neighbors", "owned_rows", "ghost_rows", "interior_rows"):
        np.testing.assert_array_equal(getattr(on_mesh, name), getattr(plan, name))
    np.testing.assert_array_equal(on_mesh.renumber(), plan.renumber())
    assert on_mesh.describe(fields.own) == plan.describe(fields.own)
    leaves, structure = jax.tree_util.tree_flatten(plan)
    assert not leaves
    assert structure.unflatten([]) is plan


@pytest.mark.ranks(2)
def test_errors(fields):
    with pytest.raises(ValueError, match=r"expected a call in a jax.shard_map over its"):
        fields.on_mesh.exchange(jnp.zeros(fields.on_mesh.size))
    with pytest.raises(ValueError, match="with a communicator, expected it with a mesh"):
        Plan.from_neighbors({}, 2, comm=MPI.COMM_WORLD, names="i")
    with pytest.raises(ValueError, match="of a plan on a communicator, expected one on a"):
        fields.plan.spread(fields.own)

    def body(plan, x):
        with pytest.raises(ValueError, match="`root` of a plan on a mesh"):
            plan.gather(x, root=0)
        with pytest.raises(ValueError, match=r"Plan.describe was used in a program on a"):
            plan.describe()
        with pytest.raises(ValueError, match=r"Plan.owned_rows was used in a program on"):
            _ = plan.owned_rows
        return x

    fields.run(body, fields.spread, is_checked=False)
