"""Random programs: loops, branches, slices and calls, in any order and nested.

More of them, until one fails (its seed was printed last):

    mpiexec -n 2 python tests/gpu_compiler/test_random.py FIRST_SEED COUNT
"""

import itertools
import random
import sys

import gpu
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from mpi4py import MPI
from programs import LEFT, OTHER, RIGHT, X

from mpi4jax import notoken as mpi
from mpi4jax._internal.mpi import device

SEEDS = range(12)


class Writer:
    """Makes up a function of two arrays, whose calls have tags of their own."""

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.tags = itertools.count(1)

    def block(self, depth):
        """A function that does some things, one after the other."""
        kinds = [self.call, self.call, self.compute, self.update, self.jitted]
        if depth:
            kinds += [self.loop, self.branches]
        steps = [
            self.choose.choice(kinds)(depth - 1) for _ in range(self.choose.randint(1, 4))
        ]

        def run(arrays):
            for step in steps:
                arrays = step(arrays)
            return arrays

        return run

    def operation(self):
        """A function from an array to one like it."""
        tag, comm = next(self.tags), self.choose.choice([None, OTHER])
        return self.choose.choice(
            [
                lambda x: mpi.sendrecv(
                    x, x, LEFT, RIGHT, sendtag=tag, recvtag=tag, comm=comm
                ),
                lambda x: mpi.allreduce(x, MPI.SUM, comm=comm),
                lambda x: mpi.scan(x, MPI.SUM, comm=comm),
                lambda x: mpi.bcast(x, 0, comm=comm),
                lambda x: mpi.allgather(x, comm=comm)[1],
            ]
        )

    def part(self):
        """A slice of rows, or all of them, with where it is."""
        start = self.choose.randrange(3)
        return self.choose.choice(
            [slice(start, start + 1), slice(start, start + 2), slice(None)]
        )

    def call(self, _):
        operation, part, target = self.operation(), self.part(), self.choose.randrange(2)

        def run(arrays):
            arrays = list(arrays)
            result = operation(arrays[target][part])
            arrays[1 - target] = arrays[1 - target] + result.sum()
            return arrays

        return run

    def update(self, _):
        operation, size = self.operation(), self.choose.randint(1, 2)
        source, target = self.choose.randrange(3), self.choose.randrange(3)

        def run(arrays):
            x, y = arrays
            rows = operation(lax.dynamic_slice_in_dim(x, source, size))
            return [y, lax.dynamic_update_slice_in_dim(x, rows, target, 0)]

        return run

    def compute(self, _):
        factor = self.choose.random()
        return lambda arrays: [arrays[0] * factor + 1, jnp.sin(arrays[1])]

    def jitted(self, depth):
        return jax.jit(self.block(max(depth, 0)))

    def loop(self, depth):
        body, turns = self.block(depth), self.choose.randint(2, 5)
        if self.choose.random() < 0.5:
            return lambda arrays: lax.fori_loop(
                0, turns, lambda _, x: list(body(x)), arrays
            )
        return lambda arrays: lax.scan(
            lambda x, row: (list(body([x[0] + row, x[1]])), row), arrays, arrays[0]
        )[0]

    def branches(self, depth):
        first, second = self.block(depth), self.block(depth)
        return lambda arrays: lax.cond(
            arrays[0].sum() > 0, lambda x: list(first(x)), lambda x: list(second(x)), arrays
        )


def check(seed, options):
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(f"seed {seed}, {options}", flush=True)
    body = Writer(seed).block(3)

    def function(x, y):
        return list(body([x, y]))

    program = gpu.compile_for_gpu(function, X, X, options=options)
    assert gpu.calls_in(program) == gpu.calls_of(function, X, X)
    gpu.check_chain(program)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_order(seed):
    check(seed, list(gpu.OPTIONS)[seed % len(gpu.OPTIONS)])


if __name__ == "__main__":
    device.prepare = lambda platform: None
    mpi.barrier()
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        check(seed, list(gpu.OPTIONS)[seed % len(gpu.OPTIONS)])
    print("done")
