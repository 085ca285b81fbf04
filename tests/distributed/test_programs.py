"""Whole programs of JAX's, which say where arrays are, and not what is exchanged."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pages
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mpi4jax._internal.xla.jax_compat import allows_sharded_programs


def test_examples_of_the_documentation(size):
    """One program. JAX is started already."""
    blocks = pages.blocks_of(pages.ROOT / "docs" / "distributed.md")
    assert len(blocks) == 3
    if not allows_sharded_programs():
        blocks.pop()  # which has one
    names = {}
    for block in blocks:
        exec(block.text.replace("distributed.initialize()", ""), names)
    np.testing.assert_array_equal(names["total"], np.full(3, size * (size + 1) / 2))
    np.testing.assert_array_equal(names["largest"], np.full((1, 3), size))


def test_devices(rank, size):
    assert jax.process_index() == rank
    assert jax.process_count() == size
    assert [device.process_index for device in jax.devices()] == list(range(size))


def test_matrix_product(grid, size, spread, assert_is):
    a = np.arange(64.0 * size).reshape(8, 8 * size)
    b = np.arange(64.0 * size).reshape(8 * size, 8) % 7
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(grid, P("i", "j")))
    c = product(spread(a, grid, "i", "j"), spread(b, grid, "j", "i"))
    # The sums are exact.
    assert_is(c, a @ b)


def test_resharding(grid, size, spread, assert_is):
    a = np.arange(16.0 * size * size).reshape(4 * size, 4 * size)
    move = jax.jit(lambda x: x.T + 1, out_shardings=NamedSharding(grid, P("j", None)))
    assert_is(move(spread(a, grid, "i", "j")), a.T + 1)


def test_training_step(grid, size, spread, assert_is):
    """Parameters along one axis, data along the other: as on one process."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(4, 8), (8, 2), (4 * size, 4), (4 * size, 2)]
    numbers = [
        np.asarray(jax.random.normal(key, shape))
        for key, shape in zip(keys, shapes, strict=True)
    ]

    def loss(parameters, x, y):
        first, second = parameters
        return jnp.mean((jnp.tanh(x @ first) @ second - y) ** 2)

    @jax.jit
    def step(parameters, x, y):
        value, gradient = jax.value_and_grad(loss)(parameters, x, y)
        moved = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)
        return moved, value

    first, second, x, y = numbers
    expected, expected_losses = (first, second), []
    for _ in range(5):
        expected, value = step(expected, x, y)
        expected_losses.append(float(value))
    parameters = (spread(first, grid, None, "j"), spread(second, grid, "j", None))
    data = spread(x, grid, "i", None), spread(y, grid, "i", None)
    losses = []
    for _ in range(5):
        parameters, value = step(parameters, *data)
        losses.append(float(value))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-10)
    assert expected_losses[-1] < expected_losses[0]
    for part, whole in zip(parameters, expected, strict=True):
        gathered = multihost_utils.process_allgather(part, tiled=True)
        np.testing.assert_allclose(gathered, whole, rtol=1e-10)


def test_multihost_utils(rank, size):
    gathered = multihost_utils.process_allgather(np.array([rank, rank**2]))
    np.testing.assert_array_equal(gathered, [[r, r**2] for r in range(size)])
    told = multihost_utils.broadcast_one_to_all(np.array([rank + 5.0, 1.0]))
    np.testing.assert_array_equal(told, [5.0, 1.0])
    multihost_utils.sync_global_devices("here")
    multihost_utils.assert_equal(np.arange(3), "not equal")


def test_threads_that_start_programs_at_once(mesh, spread, size):
    """Fails if calls of several threads on a communicator get into each other."""
    shape, same = (size, 1000), NamedSharding(mesh, P())
    x = spread(np.ones(shape, np.float32), mesh, "i")
    total = jax.jit(lambda x: x.sum(0), out_shardings=same)

    def work(_):
        sums = [np.asarray(total(x).addressable_data(0)) for _ in range(25)]
        return all((total_of_ones == size).all() for total_of_ones in sums)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
