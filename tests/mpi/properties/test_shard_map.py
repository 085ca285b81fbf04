"""Operations inside of `jax.shard_map` on one device, with its check of what varies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

COMM = MPI.COMM_WORLD
SIZE, RANK = COMM.Get_size(), COMM.Get_rank()
NEXT, LAST = (RANK + 1) % SIZE, (RANK - 1) % SIZE
X = jnp.arange(4.0) + RANK


def in_shard_map(function):
    mesh = Mesh(np.array(jax.local_devices()[:1]), ("i",))
    spec = PartitionSpec("i")
    return shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)


def total(x):
    return mpi.allreduce(x, MPI.SUM) / SIZE


def shifted(x):
    return mpi.sendrecv(x, jnp.zeros(4), LAST, NEXT)


def nonblocking(x):
    return mpi4jax.wait(mpi4jax.iallreduce(x, MPI.SUM))


def overlapped(x):
    return sum(mpi4jax.overlap(lambda: total(x), during=lambda: 2 * x))


def of_tree(x):
    """A sum of more leaves than XLA concatenates, which the core packs."""
    return sum(mpi.tree.allreduce([n * x for n in range(6)], MPI.SUM))


FUNCTIONS = {
    "allreduce": total,
    "max": lambda x: mpi.allreduce(x, MPI.MAX),
    "allgather": lambda x: mpi.allgather(x).sum(0),
    "bcast": lambda x: mpi.bcast(x, 0),
    "sendrecv": shifted,
    "iallreduce": nonblocking,
    "overlap": overlapped,
    "tree": of_tree,
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, y: total(y), x),
    "scan": lambda x: jax.lax.scan(lambda y, _: (shifted(y), None), x, length=3)[0],
}
SCAN_AND_REST = [name for name in FUNCTIONS if name != "loop"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_results_vary_as_operands_do(name, transform):
    """Fails if JAX takes results for the same on all devices."""
    function = FUNCTIONS[name]
    result = transform(in_shard_map(function))(X)
    np.testing.assert_allclose(result, function(X), rtol=1e-6)


@pytest.mark.parametrize("name", SCAN_AND_REST)
def test_derivatives(name):
    def pulled(x):
        results, pull = jax.vjp(FUNCTIONS[name], x)
        return pull(results)[0] + jax.jvp(FUNCTIONS[name], (x,), (x,))[1]

    result = jax.jit(in_shard_map(pulled))(X)
    np.testing.assert_allclose(result, pulled(X), rtol=1e-6)
