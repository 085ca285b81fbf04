"""Checkpoints of arrays that JAX has divided among processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import files, halo

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
WHOLE = np.arange(24.0 * SIZE * SIZE).reshape(4 * SIZE, 6 * SIZE)


@pytest.fixture
def folder(tmp_path):
    """An empty folder of all ranks."""
    return COMM.bcast(tmp_path)


def sharding(*spec):
    devices = np.array(jax.devices()).reshape(SIZE, 1)
    return NamedSharding(Mesh(devices, ("i", "j")), P(*spec))


def spread(whole, sharding):
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def assert_equal(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.sharding.is_equivalent_to(expected.sharding, expected.ndim)
    pairs = zip(found.addressable_shards, expected.addressable_shards, strict=True)
    for x, y in pairs:
        np.testing.assert_array_equal(np.asarray(x.data), np.asarray(y.data))


@pytest.mark.parametrize("spec", [("i",), (None, "i"), (("i", "j"),), ()])
def test_shardings(folder, spec):
    tree = {
        "x": spread(WHOLE, sharding(*spec)),
        "short": spread(WHOLE.astype(jnp.bfloat16), sharding(*spec)),
        "step": 3,
    }
    plan = {"x": sharding(*spec), "short": sharding(*spec), "step": None}
    files.save(folder / "a", tree, plan, chunks=(2, 3))
    assert not files.info(folder / "a", verify=True).damage
    loaded = files.load(folder / "a", plan, like=tree)
    assert loaded["step"] == 3
    assert_equal(loaded["x"], tree["x"])
    assert_equal(loaded["short"], tree["short"])
    # In another sharding, and by other plans.
    other = sharding(None, "i")
    assert_equal(files.load(folder / "a", other)["x"], spread(WHOLE, other))
    np.testing.assert_array_equal(files.load(folder / "a")["x"], WHOLE)
    grid = COMM.Create_cart([SIZE], [True])
    rows = halo.Plan(grid, 1, axes=[-2], shape=[4 * SIZE])
    x = files.load(folder / "a", {"x": rows, "short": None, "step": None})["x"]
    np.testing.assert_array_equal(x, rows.scatter(WHOLE))


def test_parts_of_a_prime_size(folder, monkeypatch):
    """Chunks divide them, as a file belongs to one process."""
    from mpi4jax._internal.files import chunks

    monkeypatch.setattr(chunks, "LARGEST", 64)
    whole = np.arange(13 * SIZE * 4.0, dtype=np.float32).reshape(13 * SIZE, 4)
    x = spread(whole, sharding("i"))
    files.save(folder / "a", x, sharding("i"))
    assert_equal(files.load(folder / "a", sharding("i")), x)


def test_keys(folder):
    keys = jax.random.split(jax.random.key(3), 2 * SIZE)
    data = np.asarray(jax.random.key_data(keys))
    spread_keys = jax.random.wrap_key_data(spread(data, sharding("i", None)))
    files.save(folder / "a", spread_keys, sharding("i"))
    loaded = files.load(folder / "a", sharding("i"))
    assert jax.random.key_impl(loaded) == jax.random.key_impl(keys)
    assert loaded.shape == keys.shape
    own = np.asarray(jax.random.key_data(loaded.addressable_data(0)))
    np.testing.assert_array_equal(own, data[2 * RANK : 2 * RANK + 2])


def test_errors(folder):
    x = spread(WHOLE, sharding("i"))
    if SIZE > 1:
        with pytest.raises(ValueError, match="expected its sharding in `plan`"):
            files.save(folder / "a", x)
        with pytest.raises(ValueError, match="expected that of `plan`"):
            files.save(folder / "a", x, sharding(None, "i"))
        own = jnp.ones(3)
        with pytest.raises(ValueError, match=f"expected one over all {SIZE}"):
            files.save(folder / "a", own, own.sharding)
        with pytest.raises(ValueError, match="expected divisors of the shape of a shard"):
            files.save(folder / "a", x, sharding("i"), chunks=(3, 1))
