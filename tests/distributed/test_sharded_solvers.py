"""Sums and solvers in programs on a mesh, against NumPy on whole vectors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import halo, linalg, unstructured
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs

pytestmark = pytest.mark.skipif(
    not allows_sharded_programs(), reason="JAX < 0.9.1 has no operations in a shard_map"
)

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
SOLVERS = {
    "cg": linalg.cg,
    "pipelined": functools.partial(linalg.cg, pipelined=True),
    "bicgstab": linalg.bicgstab,
    "gmres": linalg.gmres,
}
every_solver = pytest.mark.parametrize("name", SOLVERS)
N = 5 * SIZE

#: How often JAX counts a sum over the mesh in derivatives, by whether it checks programs.
COUNTED = {True: 1, False: SIZE}

#: On a ring, with a term that makes it definite.
MATRIX = 2.5 * np.eye(N) - np.roll(np.eye(N), 1, 0) - np.roll(np.eye(N), -1, 0)
RIGHT = np.random.default_rng(0).normal(size=N)
WEIGHTS = np.random.default_rng(1).uniform(1, 2, N)
OWN = slice(5 * RANK, 5 * RANK + 5)


def loss_alone(weights, b):
    x = jnp.linalg.solve(jnp.diag(weights) + MATRIX, b)
    return jnp.vdot(x, jnp.sin(x)), x


def part_of(x):
    return np.asarray(x.addressable_data(0))


@every_solver
def test_fields_of_a_halo_plan(name, mesh, spread, is_checked):
    plan = halo.Plan(mesh, periods=[True])

    def loss(weights, b):
        def A(u):
            inner = (weights + 2.5) * u[1:-1] - u[:-2] - u[2:]
            return jnp.pad(inner, 1, constant_values=jnp.nan)

        u, info = SOLVERS[name](A, plan.with_ghosts(b), rtol=1e-11, plan=plan)
        value = linalg.vdot(u, jnp.sin(u), plan=plan, reproducible=True)
        return value, (plan.without_ghosts(u), info.converged)

    def program(weights, b):
        return jax.value_and_grad(loss, (0, 1), has_aux=True)(weights, b)

    specs = (P(), (P("i"), P())), (P("i"), P("i"))
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=P("i"), out_specs=specs, check_vma=is_checked
    )
    arguments = spread(WEIGHTS, mesh, "i"), spread(RIGHT, mesh, "i")
    (value, (x, converged)), gradients = jax.jit(mapped)(*arguments)
    alone = jax.value_and_grad(loss_alone, (0, 1), has_aux=True)
    (expected, solution), of_both = alone(WEIGHTS, RIGHT)
    assert part_of(converged)
    np.testing.assert_allclose(part_of(value), expected, rtol=1e-9)
    np.testing.assert_allclose(part_of(x), solution[OWN], atol=1e-9)
    for gradient, each in zip(gradients, of_both, strict=True):
        each = each[OWN] * COUNTED[is_checked]
        np.testing.assert_allclose(part_of(gradient), each, atol=1e-9)


@every_solver
def test_fields_of_rows(name, mesh, is_checked):
    """The own points of a process and their neighbors, in another order on each."""
    own = np.arange(N)[OWN]
    ids = np.union1d(own, [(own[0] - 1) % N, (own[-1] + 1) % N])
    ids = np.random.default_rng(RANK).permutation(ids)
    owned = np.isin(ids, own)
    on_mesh = unstructured.Plan.from_global(ids, owned, comm=mesh)
    sides = [np.flatnonzero(ids == (i + step) % N)[0] for i in own for step in (-1, 1)]
    neighbors = np.zeros((len(ids), 2), int)
    neighbors[[np.flatnonzero(ids == i)[0] for i in own]] = np.reshape(sides, (-1, 2))
    arguments = on_mesh.spread((WEIGHTS[ids], RIGHT[ids], neighbors))

    def loss(weights, b, neighbors, plan):
        def A(u):
            product = (weights + 2.5) * u - u[neighbors].sum(1)
            return jnp.where(plan.owned, product, jnp.nan)

        u, info = SOLVERS[name](A, b, rtol=1e-11, plan=plan)
        value = linalg.vdot(u, jnp.sin(u), plan=plan)
        return value, (u, info.converged)

    def program(*arguments):
        return jax.value_and_grad(loss, (0, 1), has_aux=True)(*arguments)

    specs = (P(), (P("i"), P())), (P("i"), P("i"))
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=P("i"), out_specs=specs, check_vma=is_checked
    )
    (value, (x, converged)), gradients = jax.jit(mapped)(*arguments, on_mesh)
    alone = jax.value_and_grad(loss_alone, (0, 1), has_aux=True)
    (expected, solution), of_both = alone(WEIGHTS, RIGHT)
    assert part_of(converged)
    np.testing.assert_allclose(part_of(value), expected, rtol=1e-9)
    np.testing.assert_allclose(part_of(x)[: len(ids)], solution[ids], atol=1e-9)
    for gradient, each in zip(gradients, of_both, strict=True):
        actual = part_of(gradient)[: len(ids)][owned]
        each = each[ids[owned]] * COUNTED[is_checked]
        np.testing.assert_allclose(actual, each, atol=1e-9)
