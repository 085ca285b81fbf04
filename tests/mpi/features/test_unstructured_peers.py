"""Plans of unstructured meshes, against the exchanges that other codes write by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest
from mpi4py import MPI
from scipy import spatial

from mpi4jax import notoken as mpi
from mpi4jax.unstructured import Plan

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

pytestmark = pytest.mark.usefixtures("enable_x64")

NODES = 60
PARTITIONS = ("strips", "random", "few")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(pages.ROOT / "benchmarks")
    import peers

    return peers


class Part:
    """The triangles of this process in a mesh of which all have the whole."""

    def __init__(self, seed, partition):
        generator = np.random.default_rng([seed, SIZE])
        points = generator.random((NODES, 2))
        self.all_triangles = spatial.Delaunay(points).simplices
        count = len(self.all_triangles)
        owners = {
            "strips": np.argsort(np.argsort(points[self.all_triangles, 0].mean(axis=1)))
            * SIZE
            // count,
            "random": generator.integers(0, SIZE, count),
            # Most processes have no triangle.
            "few": generator.integers(0, min(SIZE, 2), count),
        }[partition]
        self.all_triangles = generator.permutation(NODES)[self.all_triangles]
        self.matrices = generator.normal(size=(count, 3, 3))
        own = self.all_triangles[owners == RANK]
        self.own_matrices = self.matrices[owners == RANK]
        # From here on, random numbers differ between ranks.
        self.ids = generator.permutation(np.unique(own))
        order = np.argsort(self.ids)
        self.triangles = order[np.searchsorted(self.ids, own, sorter=order)]
        self.plan = Plan.from_global(self.ids, comm=WORLD)


@pytest.fixture(params=itertools.product(range(3), PARTITIONS), ids=str)
def part(request):
    print(f"seed {request.param[0]}, {SIZE} ranks")
    return Part(*request.param)


def of_this_rank(seed, count):
    return jnp.asarray(np.random.default_rng([seed, RANK]).normal(size=count))


def test_values_and_residuals_of_a_loop_over_neighbors(peers, part):
    """tatva: fails if a plan gives other ghosts, or sums other copies.

    Only the plan is differentiated: where ghosts go one way, JAX has no transpose of the
    loop's messages, as a part of the ranks sends what depends on nothing.
    """
    plan = part.plan
    loop = peers.NeighborLoop(mpi, part.ids, plan.owned, NODES, WORLD)
    np.testing.assert_array_equal(loop.numbers, plan.renumber())

    owned = of_this_rank(0, len(plan.owned_rows))
    values, pull = jax.vjp(jax.jit(plan.with_ghosts), owned)
    np.testing.assert_array_equal(values, jax.jit(loop.values)(owned))

    local = of_this_rank(1, plan.size)
    residuals = jax.jit(loop.residuals)(local)
    total = plan.without_ghosts(jax.jit(plan.accumulate)(local))
    np.testing.assert_allclose(total, residuals, rtol=1e-12, atol=1e-12)

    np.testing.assert_allclose(pull(local)[0], residuals, rtol=1e-12, atol=1e-12)


def test_entries_of_a_matrix(peers, part):
    """tatva: the entries of a row are summed at the owner of its node.

    A plan of entries, whose ids are their places in the whole matrix, does the same. The
    owner has all entries of its rows, also the entries to which only others add.
    """
    plan = part.plan
    loop = peers.NeighborLoop(mpi, part.ids, plan.owned, NODES, WORLD)
    rows = np.repeat(part.triangles, 3, axis=1).ravel()
    columns = np.tile(part.triangles, (1, 3)).ravel()
    values = jnp.asarray(part.own_matrices.ravel())
    by_loop = loop.find_entries(rows, columns)
    expected = jax.jit(by_loop.entries)(values)

    local_ids, places = np.unique(
        loop.numbers[rows] * NODES + loop.numbers[columns], return_inverse=True
    )
    owned_ids = by_loop.pairs @ [NODES, 1]
    ids = np.union1d(local_ids, owned_ids)
    owned = np.isin(ids, owned_ids)
    entries = Plan.from_global(ids, owned, comm=WORLD)
    places = np.searchsorted(ids, local_ids)[places.reshape(-1)]

    @jax.jit
    def assemble(values):
        return entries.accumulate(jnp.zeros(entries.size).at[places].add(values))

    result = entries.without_ghosts(assemble(values))
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)

    whole = np.zeros((NODES, NODES))
    corners = part.all_triangles
    np.add.at(whole, (corners[:, :, None], corners[:, None, :]), part.matrices)
    id_of = np.full(NODES, -1)
    id_of[loop.numbers] = part.ids
    WORLD.Allreduce(MPI.IN_PLACE, id_of, op=MPI.MAX)
    dense = whole[tuple(id_of[by_loop.pairs].T)]
    np.testing.assert_allclose(result, dense, rtol=1e-12, atol=1e-12)


def test_ghosts_of_a_padded_alltoall(peers, part):
    """JAX-AMG: rows of a matrix are divided in blocks, and ghosts come by an alltoall."""
    bounds = np.arange(SIZE + 1) * NODES // SIZE
    own = np.arange(bounds[RANK], bounds[RANK + 1])
    starts = np.concatenate([part.all_triangles[:, [i, (i + 1) % 3]] for i in range(3)])
    columns = starts[np.isin(starts[:, 0], own), 1]
    ghosts = np.setdiff1d(columns, own)
    alltoall = peers.PaddedAlltoall(mpi, bounds, ghosts, WORLD)
    plan = Plan.from_global(
        np.concatenate([own, ghosts]), np.arange(len(own) + len(ghosts)) < len(own)
    )

    owned = of_this_rank(2, len(own))
    expected, pull_alltoall = jax.vjp(jax.jit(alltoall.with_ghosts), owned)
    result, pull_plan = jax.vjp(jax.jit(plan.with_ghosts), owned)
    np.testing.assert_array_equal(result, expected)
    local = of_this_rank(3, plan.size)
    (ours,), (theirs,) = pull_plan(local), pull_alltoall(local)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(2)
def test_transpose_where_rows_go_one_way():
    """Fails, by waiting for ever, if JAX leaves out the messages of who only sends."""
    lists = {1: ([0, 1], [])} if RANK == 0 else {0: ([], [2, 3])} if RANK == 1 else {}
    plan = Plan.from_neighbors(lists, 4, comm=WORLD)

    def function(x):
        return plan.accumulate(2 * plan.exchange(x))

    y = of_this_rank(0, 4)
    transpose = jax.jit(jax.linear_transpose(function, y))
    transpose_of_transpose = jax.linear_transpose(lambda y: transpose(y)[0], y)
    expected = 2 * y
    if RANK == 0:
        expected = expected.at[:2].multiply(2)
    if RANK == 1:
        expected = expected.at[2:].set(0)
    np.testing.assert_allclose(transpose(y)[0], expected)
    np.testing.assert_allclose(transpose_of_transpose(y)[0], function(y))
