"""A small network, trained on data that each process has a part of.

mpiexec -n 2 python examples/training.py

Is a point in the first or third quadrant, or in the second or fourth? Each process has
points of its own. Rank 0 makes the weights and sends them to all. In every step, each
process computes the gradient of a batch of its points, and all of them average their
gradients, so the weights stay equal. Weights and gradients are trees: an operation is one
call for all of a tree.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import jax
import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi

LAYERS = (2, 16, 16, 1)
POINTS, BATCH = 4096, 64  # of each process
RATE, MOMENTUM = 0.1, 0.9

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def first_weights(key):
    """Random matrices, and biases of 0."""
    keys = jax.random.split(key, len(LAYERS) - 1)
    shapes = itertools.pairwise(LAYERS)
    return [
        {"matrix": jax.random.normal(k, (m, n)) / jnp.sqrt(m), "bias": jnp.zeros(n)}
        for k, (m, n) in zip(keys, shapes, strict=True)
    ]


def predict(weights, points):
    """The logarithm of the odds that a point is in the first or third quadrant."""
    *hidden, last = weights
    for layer in hidden:
        points = jnp.tanh(points @ layer["matrix"] + layer["bias"])
    return (points @ last["matrix"] + last["bias"])[:, 0]


def loss(weights, points, labels):
    """The cross-entropy of some points of this process."""
    signs = jnp.where(labels, 1.0, -1.0)
    return jnp.mean(jnp.logaddexp(0.0, -signs * predict(weights, points)))


def average(tree):
    """The average over all processes."""
    return jax.tree.map(lambda x: x / size, mpi.allreduce(tree, op=MPI.SUM, comm=comm))


def step(state, batch):
    weights, velocity = state
    value, gradient = average(jax.value_and_grad(loss)(weights, *batch))
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
    weights = jax.tree.map(lambda w, v: w - RATE * v, weights, velocity)
    return (weights, velocity), value


@jax.jit
def train_epoch(state, key, points, labels):
    """Once through the points of this process, in another order each time."""
    order = jax.random.permutation(key, POINTS).reshape(-1, BATCH)
    state, losses = jax.lax.scan(step, state, (points[order], labels[order]))
    return state, losses.mean()


@jax.jit
def accuracy(weights, points, labels):
    return average(jnp.mean((predict(weights, points) > 0) == labels))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    # Points differ between processes, and so does the key.
    points_key, order_key = jax.random.split(jax.random.key(rank + 1))
    points = jax.random.uniform(points_key, (POINTS, 2), minval=-1, maxval=1)
    labels = points[:, 0] * points[:, 1] > 0

    weights = first_weights(jax.random.key(0)) if rank == 0 else first_weights(order_key)
    weights = mpi.bcast(weights, root=0, comm=comm)
    state = weights, jax.tree.map(jnp.zeros_like, weights)
    for epoch in range(args.epochs):
        key = jax.random.fold_in(order_key, epoch)
        state, value = train_epoch(state, key, points, labels)
        share = accuracy(state[0], points, labels)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {value:.3f}, accuracy {share:.1%}", flush=True)

    weights = state[0]
    largest = mpi.allreduce(weights, op=MPI.MAX, comm=comm)
    are_equal = jax.tree.all(jax.tree.map(jnp.array_equal, weights, largest))
    print(f"r{rank} | weights are those of all ranks: {are_equal}")
    return 0 if are_equal and share > 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
