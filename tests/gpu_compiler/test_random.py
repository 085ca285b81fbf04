"""Random programs: loops, branches, slices and calls, in any order and nested.

More of them, until one fails (its seed was printed last):

    mpiexec -n 2 python tests/gpu_compiler/test_random.py FIRST_SEED COUNT [sharded]
"""

import itertools
import random
import sys

import gpu
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI
from programs import COMM, LEFT, OTHER, RIGHT, SIZE, X

from mpi4jax import distributed
from mpi4jax import notoken as mpi
from mpi4jax._internal.mpi import device
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs

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
                    x, x, *self.neighbors(), sendtag=tag, recvtag=tag, comm=comm
                ),
                lambda x: mpi.allreduce(x, MPI.SUM, comm=comm),
                lambda x: mpi.scan(x, MPI.SUM, comm=comm),
                lambda x: mpi.bcast(x, 0, comm=comm),
                lambda x: mpi.allgather(x, comm=comm)[1],
                *self.others(),
            ]
        )

    def neighbors(self):
        """The ranks on the left and on the right."""
        return LEFT, RIGHT

    def others(self):
        """More functions from an array to one like it, which call no operation of ours."""
        return []

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


class ShardedWriter(Writer):
    """Makes up programs on a mesh, with collectives of XLA's among the calls."""

    def neighbors(self):
        rank = lax.axis_index("i")
        return (rank - 1) % SIZE, (rank + 1) % SIZE

    def others(self):
        ring = [(rank, (rank + 1) % SIZE) for rank in range(SIZE)]
        return [lambda x: lax.psum(x, "i"), lambda x: lax.ppermute(x, "i", ring)]


def check(seed, writer):
    # Every fourth seed (tests/sample.py) has another option, too.
    options = list(gpu.OPTIONS)[(seed + seed // 4) % len(gpu.OPTIONS)]
    if COMM.Get_rank() == 0:
        print(f"seed {seed}, {options}", flush=True)
    body = writer(seed).block(3)
    function, x = (lambda x, y: list(body([x, y]))), X
    if writer is ShardedWriter:
        mesh = Mesh(np.array(gpu.devices(SIZE)), "i")
        rows = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
        function = jax.shard_map(function, check_vma=False, **rows)
        shape = (SIZE * X.shape[0], *X.shape[1:])
        x = jax.ShapeDtypeStruct(shape, X.dtype, sharding=NamedSharding(mesh, P("i")))
    program = gpu.compile_for_gpu(function, x, x, options=options)
    assert gpu.calls_in(program) == gpu.calls_of(function, x, x)
    gpu.check_chain(program)
    if writer is ShardedWriter:
        assert COMM.allgather(program.text) == [program.text] * SIZE


@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_order(seed):
    check(seed, Writer)


@pytest.mark.ranks(2)
@pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1")
@pytest.mark.parametrize("seed", SEEDS)
def test_order_in_a_shard_map(seed):
    check(seed, ShardedWriter)


if __name__ == "__main__":
    device.prepare = lambda platform: None
    distributed.initialize()
    mpi.barrier()
    first, count = map(int, sys.argv[1:3])
    for seed in range(first, first + count):
        check(seed, ShardedWriter if sys.argv[3:] == ["sharded"] else Writer)
    print("done")
