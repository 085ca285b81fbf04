"""Programs on some of the processes, which others know nothing of.

XLA tells MPI of a communicator only its first device and the rank in it. Fails if programs
on overlapping sets of processes exchange data with each other.
"""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

#: Integers in floats, so that sums are exact in any order.
LARGEST = 1000


def _sum(x):
    return jax.lax.psum(x, "i")


def _gather(x):
    return jax.lax.all_gather(x, "i", tiled=True)


def _shift(x):
    size = jax.lax.psum(1, "i")
    return jax.lax.ppermute(x, "i", [(n, (n + 1) % size) for n in range(size)])


def _transpose(x):
    return jax.lax.all_to_all(x, "i", 1, 0, tiled=True)


def _scatter(x):
    return jax.lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)


#: Each with what it gives to each process of an array with a row for each of them.
COLLECTIVES = {
    _sum: lambda rows, n: rows.sum(0, keepdims=True),
    _gather: lambda rows, n: rows,
    _shift: lambda rows, n: rows[[n - 1]],
    _transpose: lambda rows, n: np.stack(np.split(rows, len(rows), axis=1)[n]),
    _scatter: lambda rows, n: np.split(rows.sum(0, keepdims=True), len(rows), axis=1)[n],
}


@pytest.fixture
def run_on(shard_map, rank):
    """Runs a collective of `rows` on the processes `ranks`, in their order."""

    def call(collective, ranks, rows):
        devices = [jax.devices()[n] for n in ranks]
        sharding = NamedSharding(Mesh(np.array(devices), ("i",)), P("i"))
        own = jax.device_put(rows[[ranks.index(rank)]], jax.local_devices()[0])
        x = jax.make_array_from_single_device_arrays(rows.shape, sharding, [own])
        body = shard_map(collective, mesh=sharding.mesh, in_specs=P("i"), out_specs=P("i"))
        return np.asarray(jax.jit(body)(x).addressable_data(0))

    return call


@pytest.mark.parametrize("seed", range(20))
def test_programs_on_random_processes(run_on, rank, size, seed):
    random = np.random.default_rng(seed)
    for _ in range(12):
        count = random.integers(1, size + 1)
        ranks = random.permutation(size)[:count].tolist()
        collective = random.choice(list(COLLECTIVES))
        shape = (count, count * random.integers(1, 5))
        rows = random.integers(LARGEST, size=shape).astype(np.float32)
        if rank in ranks:
            expected = COLLECTIVES[collective](rows, ranks.index(rank))
            result = run_on(collective, ranks, rows)
            np.testing.assert_array_equal(
                result, expected, err_msg=f"{collective} on {ranks}"
            )
