"""A small network on arrays that JAX shards over the processes.

mpiexec -n 4 python examples/sharded.py
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mpi4jax import distributed

distributed.initialize()

# The rows of the data are spread over one axis of the grid, hidden units over the other.
count = jax.device_count()
columns = 2 if count % 2 == 0 else 1
grid = np.array(jax.devices()).reshape(count // columns, columns)
mesh = Mesh(grid, ("rows", "units"))


def spread(array, *axes):
    """Every process has the whole array, and keeps its part."""
    sharding = NamedSharding(mesh, P(*axes))
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


random = np.random.default_rng(0)
inputs = random.normal(size=(64 * count, 8)).astype(np.float32)
targets = np.sin(inputs.sum(1, keepdims=True))
first = random.normal(size=(8, 32)).astype(np.float32) / 3
second = random.normal(size=(32, 1)).astype(np.float32) / 6

data = spread(inputs, "rows", None), spread(targets, "rows", None)
weights = spread(first, None, "units"), spread(second, "units", None)


def loss(weights, inputs, targets):
    first, second = weights
    return jnp.mean((jnp.tanh(inputs @ first) @ second - targets) ** 2)


@jax.jit
def train(weights, inputs, targets):
    """100 steps downhill. XLA sums over processes where the mathematics does."""

    def step(weights, _):
        value, gradient = jax.value_and_grad(loss)(weights, inputs, targets)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

    return jax.lax.scan(step, weights, length=100)


weights, losses = train(weights, *data)
start, end = float(losses[0]), float(losses[-1])
part = weights[0].addressable_data(0).shape
print(f"r{jax.process_index()} | loss {start:.3f} to {end:.3f}, own weights {part}")
sys.exit(0 if end < start / 2 else 1)
