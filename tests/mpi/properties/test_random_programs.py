"""Random programs on trees whose leaves are often empty, scalars or of small types.

Each is one operation, run in one of the ways in which JAX runs programs, and compared with
what the trees of all ranks make of it; so is its gradient. More of them, until one fails
(its seed was printed last), with two devices:

    mpiexec -n 3 python -P tests/mpi/properties/test_random_programs.py FIRST_SEED COUNT
"""

import os
import random
import sys
import warnings
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import jax_export
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax.extend import export_checks
from mpi4jax.halo import Plan

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
RING = COMM.Create_cart([SIZE], [True])

SUMMED = ["float32", "float16", "bfloat16", "complex64", "int8", "uint32"]
TYPES = [*SUMMED, "bool", "int4", "uint4", "float8_e4m3fn", "float8_e5m2"]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (0, 2), (2, 0), (5, 1)]


def random_types(choose, dtypes):
    """Often of one dtype, and often with an empty leaf at the end."""
    inexact = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
    dtypes = choose.choice([dtypes, inexact, [choose.choice(dtypes)]])
    shapes = [choose.choice(SHAPES) for _ in range(choose.randint(1, 6))]
    if choose.random() < 0.5:
        shapes[-1] = choose.choice([(0,), (2, 0)])
    return [jax.ShapeDtypeStruct(shape, choose.choice(dtypes)) for shape in shapes]


def random_tree(seed, types):
    """Leaves of zeros and ones, which all dtypes have."""
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.integers(0, 2, x.shape)).astype(x.dtype) for x in types]


class Operation(NamedTuple):
    """A function of a tree, and what is expected of it on this rank."""

    function: Any
    operand: Any
    result: Any
    # Without a gradient, None.
    cotangent: Any = None
    gradient: Any = None


class Example:
    """The operands and cotangents of all ranks."""

    def __init__(self, seed, types, root):
        self.seed, self.types, self.root = seed, types, root
        self.operands = [random_tree([seed, 0, rank], types) for rank in range(SIZE)]
        self.cotangents = [random_tree([seed, 1, rank], types) for rank in range(SIZE)]

    def sum_of(self, function):
        """The operation that adds the trees of all ranks."""
        leaves = zip(*self.operands, strict=True)
        total = [sum(parts[1:], start=parts[0]) for parts in leaves]
        shared = self.cotangents[0]
        return Operation(function, self.operands[RANK], total, shared, shared)

    def copy_of_root(self, function):
        shared = self.cotangents[0]
        gradient = shared if self.root == RANK else zeros_like(shared)
        result = self.operands[self.root]
        return Operation(function, self.operands[RANK], result, shared, gradient)

    def shift(self, function):
        """The operation that gives each rank the tree of the one on its left."""
        result, gradient = self.operands[LEFT], self.cotangents[RIGHT]
        cotangent = self.cotangents[RANK]
        return Operation(function, self.operands[RANK], result, cotangent, gradient)

    def stacked(self):
        return [jnp.stack(leaves) for leaves in zip(*self.operands, strict=True)]


def zeros_like(tree):
    return [jnp.zeros_like(x) for x in tree]


def allreduce(example):
    return example.sum_of(lambda tree: mpi.tree.allreduce(tree, MPI.SUM))


def on_each_leaf(start):
    """The function of a tree that starts an operation for each leaf, and waits for all."""

    def function(tree):
        return list(map(mpi4jax.wait, list(map(start, tree))))

    return function


def iallreduce(example):
    return example.sum_of(on_each_leaf(lambda x: mpi4jax.iallreduce(x, MPI.SUM)))


def overlap(example):
    def function(tree):
        def communicate():
            return mpi.tree.allreduce(tree, MPI.SUM)

        return mpi4jax.overlap(communicate, during=lambda: [x + x for x in tree])[0]

    return example.sum_of(function)


def bcast(example):
    return example.copy_of_root(lambda tree: mpi.tree.bcast(tree, example.root))


def ibcast(example):
    return example.copy_of_root(on_each_leaf(lambda x: mpi4jax.ibcast(x, example.root)))


def allgather(example):
    return Operation(mpi.tree.allgather, example.operands[RANK], example.stacked())


def gather(example):
    own = example.operands[RANK]
    result = example.stacked() if example.root == RANK else own
    return Operation(lambda tree: mpi.tree.gather(tree, example.root), own, result)


def sendrecv(example):
    return example.shift(lambda tree: mpi.tree.sendrecv(tree, tree, LEFT, RIGHT))


def exchange(example):
    return example.shift(lambda tree: mpi.exchange(tree, tree, source=LEFT, dest=RIGHT))


def exchange_of_leaves(example):
    def function(tree):
        sources, dests = [LEFT] * len(tree), [RIGHT] * len(tree)
        return mpi.exchange(tree, tree, source=sources, dest=dests)

    return example.shift(function)


def iexchange(example):
    def function(tree):
        return mpi4jax.wait(mpi4jax.iexchange(tree, tree, source=LEFT, dest=RIGHT))

    return example.shift(function)


class Fields:
    """Fields on a ring of cells, along an axis in front of the leaves' axes."""

    def __init__(self, example):
        self.cells = 3 * SIZE - example.seed % SIZE
        self.types = [
            jax.ShapeDtypeStruct((self.cells, *x.shape), x.dtype) for x in example.types
        ]
        self.plan = Plan(RING, axes=[0], shape=[self.cells])
        self.whole = random_tree([example.seed, 2], self.types)

    def own(self, rank):
        return np.array_split(np.arange(self.cells), SIZE)[rank]

    def with_ghosts(self, rank):
        own = self.own(rank)
        return np.array([own[0] - 1, *own, own[-1] + 1]) % self.cells

    def part(self, rank):
        """The part of the fields on a rank, with ghost cells."""
        return [x[self.with_ghosts(rank)] for x in self.whole]

    def cotangent(self, rank):
        """A cotangent of a rank's part."""
        return [x + 1 for x in self.part(rank)]

    def sum_of_cotangents(self):
        """The sum over the values of all ranks, in whole fields."""
        total = zeros_like(self.whole)
        for rank in range(SIZE):
            cells, cotangent = self.with_ghosts(rank), self.cotangent(rank)
            total = [y.at[cells].add(x) for y, x in zip(total, cotangent, strict=True)]
        return total

    def without_ghosts(self, parts):
        """Zeros in the ghost cells."""
        return [jnp.zeros_like(x).at[1:-1].set(x[1:-1]) for x in parts]


def halo_exchange(example):
    fields = Fields(example)
    own, filled = fields.own(RANK), fields.part(RANK)
    return Operation(
        fields.plan.exchange,
        fields.without_ghosts(filled),
        filled,
        fields.cotangent(RANK),
        [
            jnp.pad(x[own], [(1, 1)] + [(0, 0)] * (x.ndim - 1))
            for x in fields.sum_of_cotangents()
        ],
    )


def halo_scatter(example):
    fields = Fields(example)
    is_root, nothing = example.root == RANK, zeros_like(fields.whole)
    return Operation(
        lambda whole: fields.plan.scatter(whole, root=example.root),
        fields.whole if is_root else nothing,
        fields.part(RANK),
        fields.cotangent(RANK),
        fields.sum_of_cotangents() if is_root else nothing,
    )


def halo_gather(example):
    fields = Fields(example)
    part, on_root = fields.part(RANK), fields.whole if example.root == RANK else []

    def function(part):
        return fields.plan.gather(part, root=example.root) or []

    if jax.__version_info__ < (0, 8):
        return Operation(function, part, on_root)
    return Operation(function, part, on_root, on_root, fields.without_ghosts(part))


#: With the dtypes of their leaves. Where leaves are added, int4 would overflow.
OPERATIONS = {
    **dict.fromkeys([allreduce, iallreduce, overlap], SUMMED),
    **dict.fromkeys([halo_exchange, halo_scatter, halo_gather], SUMMED),
    **dict.fromkeys([bcast, ibcast, allgather, gather], TYPES),
    **dict.fromkeys([sendrecv, exchange, exchange_of_leaves, iexchange], TYPES),
}


# The ways to run a program.


def eager(function, *trees):
    return function(*trees)


def jitted(function, *trees):
    return jax.jit(function)(*trees)


def donating(function, *trees):
    copies = jax.tree.map(jnp.copy, trees)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(function, donate_argnums=tuple(range(len(trees))))(*copies)


def rematerialized(function, *trees):
    return jax.jit(jax.checkpoint(function))(*trees)


def ahead_of_time(function, *trees):
    compiled = jax.jit(function).lower(*trees).compile()
    jax.block_until_ready(compiled(*trees))
    return compiled(*trees)


def exported(function, *trees):
    export = jax_export().export(jax.jit(function), disabled_checks=export_checks())
    return export(*trees).call(*trees)


def in_a_loop(function, *trees):
    def turn(_, __):
        return None, function(*trees)

    results = jax.jit(lambda: jax.lax.scan(turn, None, length=2)[1])()
    return jax.tree.map(lambda x: x[1], results)


def on_the_last_device(function, *trees):
    device = jax.devices()[-1]
    return jax.jit(function)(*jax.device_put(trees, device))


WAYS = [
    eager,
    jitted,
    donating,
    rematerialized,
    ahead_of_time,
    exported,
    in_a_loop,
    on_the_last_device,
]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for x, y in zip(actual, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_array_equal(np.asarray(x.astype("complex64")), y)


def check(seed, make):
    choose = random.Random(f"{seed} {make.__name__}")
    types = random_types(choose, OPERATIONS[make])
    way = choose.choice(WAYS)
    operation = make(Example(seed, types, root=choose.randrange(SIZE)))
    assert_same(way(operation.function, operation.operand), operation.result)
    is_differentiable = all(jnp.issubdtype(x.dtype, jnp.inexact) for x in types)
    if operation.gradient is None or not is_differentiable:
        return

    def pullback(operand, cotangent):
        return jax.vjp(operation.function, operand)[1](cotangent)[0]

    assert_same(way(pullback, operation.operand, operation.cotangent), operation.gradient)


@pytest.mark.parametrize("make", OPERATIONS, ids=[make.__name__ for make in OPERATIONS])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed, make):
    check(seed, make)


if __name__ == "__main__":
    mpi.barrier()
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        for make in OPERATIONS:
            if RANK == 0:
                print(seed, make.__name__, flush=True)
            check(seed, make)
