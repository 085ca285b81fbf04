"""A pipeline of processes, each with some layers of a network.

mpiexec -n 4 python examples/pipeline.py

Each process has the weights of some layers. For each micro-batch, it receives what the
layers before its own have made of it, applies its layers, and sends the result to the next
process. Gradients go back through the messages. Every process also trains the whole
network alone, to compare.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpi4jax
from mpi4jax import distributed
from mpi4jax.experimental import tokens

distributed.initialize()
rank, size = jax.process_index(), jax.process_count()

LAYERS = size * max(1, 8 // size)
WIDTH, BATCHES, ROWS = 128, 8, 64  # the units of a layer, the micro-batches, their rows
STEPS, RATE = 20, 1.0
TOLERANCE = 1e-4


def apply(weights, x):
    """Some layers, one after the other."""
    return lax.scan(lambda x, matrix: (jnp.tanh(x @ matrix), None), x, weights)[0]


def loss(weights, inputs, targets):
    return jnp.mean((apply(weights, inputs) - targets) ** 2)


def pipelined_loss(weights, inputs, targets):
    """The loss of the whole network, from the layers of this process."""
    stage = lax.axis_index("stages")
    is_last = stage == size - 1
    previous = jnp.where(stage > 0, stage - 1, MPI.PROC_NULL)
    following = jnp.where(is_last, MPI.PROC_NULL, stage + 1)

    def step(token, batch):
        # The first process receives from nobody, which gives the micro-batch itself.
        x, token = tokens.recv(batch, previous, token=token)
        y = apply(weights, x)
        return tokens.send(y, following, token=token), y

    # The token takes derivatives back through all messages.
    token, outputs = lax.scan(step, mpi4jax.create_token(weights), inputs)
    own_loss = jnp.where(is_last, jnp.mean((outputs - targets) ** 2), 0.0)
    return lax.psum(mpi4jax.tie(own_loss, token), "stages")


def train(loss, weights, inputs, targets):
    """The losses and gradients of some steps downhill."""

    def step(weights, _):
        value, gradient = jax.value_and_grad(loss)(weights, inputs, targets)
        return weights - RATE * gradient, (value, gradient)

    return lax.scan(step, weights, length=STEPS)[1]


random = np.random.default_rng(0)
weights = random.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
inputs = random.normal(size=(BATCHES, ROWS, WIDTH)).astype(np.float32)
targets = np.tanh(inputs.sum(-1, keepdims=True) / WIDTH**0.5)

mesh = Mesh(jax.devices(), "stages")
pipeline = jax.shard_map(
    functools.partial(train, pipelined_loss),
    mesh=mesh,
    in_specs=(P("stages"), P(), P()),
    out_specs=(P(), P(None, "stages")),
)
by_layer = NamedSharding(mesh, P("stages"))
divided = jax.make_array_from_callback(weights.shape, by_layer, weights.__getitem__)
together = jax.jit(pipeline)(divided, inputs, targets)
alone = jax.jit(functools.partial(train, loss))(weights, inputs, targets)


def difference(result, expected):
    """Between the part that this process has and the same part of the whole."""
    (part,) = result.addressable_shards
    return np.abs(part.data - expected[part.index]).max() / np.abs(expected).max()


losses = np.asarray(together[0])
differences = [*map(difference, together, jax.device_get(alone))]
print(
    f"r{rank} | {LAYERS // size} of {LAYERS} layers, loss {losses[0]:.3f} to "
    f"{losses[-1]:.3f}, largest difference to one process: {max(differences):.1e}"
)
sys.exit(0 if losses[-1] < losses[0] / 2 and max(differences) < TOLERANCE else 1)
