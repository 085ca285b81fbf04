"""Programs of JAX's over all processes, and operations of ours, in one another's way."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import notoken as mpi

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
OTHER = COMM.Dup()
#: Pairs of neighbors, and the rest.
PART = COMM.Split(RANK // 2, RANK)

LENGTH = 5


class Both:
    """Calls of both kinds on the values of this process, and what they make of them.

    Each takes and gives a value that all processes know for every rank, so that one may
    follow any other, and `expect` says what it is.
    """

    def __init__(self, mesh, shard_map, spread):
        specs = {"in_specs": P("i"), "out_specs": P("i")}

        def over(body):
            return jax.jit(shard_map(body, mesh=mesh, **specs))

        def in_loop(body):
            return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: body(x), x)

        def psum(x):
            return jax.lax.pmean(x, "i") + jax.lax.axis_index("i")

        def turn(x):
            pairs = [(k, (k + 1) % SIZE) for k in range(SIZE)]
            return jax.lax.ppermute(x, "i", pairs)

        def gather(x):
            return jax.lax.all_gather(x, "i").mean(0) - jax.lax.axis_index("i")

        def allreduce(x, comm=None):
            return mpi.allreduce(x, op=MPI.SUM, comm=comm) / SIZE + RANK

        def sendrecv(x, comm=None):
            return mpi.sendrecv(x, x, (RANK - 1) % SIZE, (RANK + 1) % SIZE, comm=comm)

        def in_part(x):
            return mpi.bcast(x, 0, comm=PART) + 0 * x

        mean = lambda v: np.full(SIZE, v.mean())  # noqa: E731
        ranks = np.arange(SIZE)
        leaders = [r - r % 2 for r in range(SIZE)]
        shared = [
            (psum, lambda v: mean(v) + ranks),
            (turn, lambda v: np.roll(v, 1)),
            (gather, lambda v: mean(v) - ranks),
        ]
        own = [
            (allreduce, lambda v: mean(v) + ranks),
            (lambda x: allreduce(x, OTHER), lambda v: mean(v) + ranks),
            (sendrecv, lambda v: np.roll(v, 1)),
            (lambda x: sendrecv(x, OTHER), lambda v: np.roll(v, 1)),
            (in_part, lambda v: v[leaders]),
        ]

        def thrice(expect):
            return lambda v: expect(expect(expect(v)))

        self.calls = []
        for body, expect in shared:
            self.calls.append((True, over(body), expect))
            self.calls.append((True, over(in_loop(body)), thrice(expect)))
        for body, expect in own:
            self.calls.append((False, body, expect))
            self.calls.append((False, jax.jit(body), expect))
            self.calls.append((False, jax.jit(in_loop(body)), thrice(expect)))
        sharding = jax.sharding.NamedSharding(mesh, P("i"))
        self.device = jax.local_devices()[0]
        self.join = lambda x: jax.make_array_from_single_device_arrays(
            (SIZE * LENGTH,), sharding, [x]
        )

    def run(self, seed, steps):
        """Some calls in a random order, on several values at the same time."""
        choice = random.Random(seed)
        values = [np.arange(SIZE) * 1.0 + k for k in range(3)]
        arrays = [
            jax.device_put(jnp.full(LENGTH, value[RANK]), self.device) for value in values
        ]
        for _ in range(steps):
            k = choice.randrange(len(values))
            is_shared, call, expect = choice.choice(self.calls)
            values[k] = expect(values[k])
            if is_shared:
                result = call(self.join(arrays[k]))
                arrays[k] = result.addressable_shards[0].data
            else:
                arrays[k] = call(arrays[k])
            if choice.random() < 0.1:
                arrays[k].block_until_ready()
        for value, array in zip(values, arrays, strict=True):
            np.testing.assert_allclose(array, value[RANK], rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def both(mesh, shard_map, spread):
    return Both(mesh, shard_map, spread)


@pytest.mark.parametrize("part", range(10))
def test_random_orders(both, part):
    """Hangs if one kind can keep the other one from running. 100 orders in all."""
    for seed in range(10 * part, 10 * part + 10):
        both.run(seed, steps=30)
