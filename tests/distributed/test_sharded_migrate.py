"""Particles that migrate in a program on a mesh, against the same outside of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax._internal.xla.jax_compat import allows_sharded_programs
from mpi4jax.unstructured import migrate

pytestmark = pytest.mark.skipif(
    not allows_sharded_programs(), reason="JAX < 0.9.1 has no operations in a shard_map"
)

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
SLOTS = 6


def own_particles(seed):
    random = np.random.default_rng([seed, RANK])
    names = 10 * RANK + np.arange(SLOTS)
    destination = random.integers(-1, SIZE, SLOTS)
    return names, random.normal(size=(SLOTS, 2)), destination, random.random(SLOTS) < 0.9


def step(names, x, destination, mask):
    fields = names, x**2, destination
    moved = migrate(fields, destination, mask=mask)
    return *moved.particles, moved.mask


def gradient(names, x, destination, mask):
    def loss(x):
        _, moved, _, mask_after = step(names, x, destination, mask)
        return jnp.sum(jnp.where(mask_after, moved[:, 0] * moved[:, 1], 0))

    return jax.grad(loss)(x)


def two_steps(names, x, destination, mask):
    state = names, x, destination, mask
    names, x, _, mask = lax.fori_loop(0, 2, lambda _, state: step(*state), state)
    return names, x + lax.psum(jnp.sum(mask), "i"), mask


def two_steps_outside(names, x, destination, mask):
    names, x, _, mask = step(*step(names, x, destination, mask))
    return names, x + MPI.COMM_WORLD.allreduce(int(mask.sum())), mask


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("function", "outside"),
    [(step, step), (gradient, gradient), (two_steps, two_steps_outside)],
    ids=["step", "gradient", "loop"],
)
def test_as_outside(mesh, function, outside, seed, is_checked):
    own = own_particles(seed)
    sharding = NamedSharding(mesh, P("i"))
    arrays = [jax.make_array_from_process_local_data(sharding, x) for x in own]
    program = jax.shard_map(
        function, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=is_checked
    )
    result = jax.tree.map(lambda x: x.addressable_data(0), jax.jit(program)(*arrays))
    jax.tree.map(np.testing.assert_array_equal, result, outside(*map(jnp.asarray, own)))


def test_neighbors(mesh):
    def call(x):
        return migrate(x, jnp.zeros(1, int), neighbors=[0]).particles

    program = jax.shard_map(call, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    if SIZE > 1:
        with pytest.raises(NotImplementedError, match="got `neighbors` in a jax.shard_map"):
            jax.eval_shape(program, jax.ShapeDtypeStruct((SIZE,), float))
