"""Random programs on meshes: our operations, JAX's collectives, loops, branches, gradients.

Each is a function of three arrays, of which each process has a row. It is also written for
the rows of all processes in NumPy, on complex numbers: a derivative is the imaginary part
that a small imaginary step gives (the complex-step method), which takes nothing from JAX.

A seed makes the program, which a failure prints. More of them, here the seeds 100 to 599:

    TEST_SEEDS=100:600 mpiexec -n 3 python -P -m pytest \
        --rootdir tests/distributed tests/distributed/test_sharded_programs.py
"""

import functools
import os
import random
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs, vary
from mpi4jax.experimental import tokens

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
OTHER = COMM.Dup()
NULL = MPI.PROC_NULL

SEEDS = range(*map(int, os.environ.get("TEST_SEEDS", "0:48").split(":")))
SHAPES = [(), (1,), (3,), (8,), (2, 3), (3, 1), (0,), (2, 0)]
REGISTERS = 3
#: What is computed of a program. In that of values, a step may be a gradient.
MODES = ["values", "values", "gradient", "gradient", "tangent", "pullbacks", "second"]
IMAGINARY_STEP, REAL_STEP = 1e-30, 1e-5
TOLERANCES = {"float64": 1e-9, "float32": 5e-3}

pytestmark = [
    pytest.mark.skipif(SIZE == 1, reason="needs several processes"),
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.10"),
]


class Group(NamedTuple):
    """The processes along some axes of a mesh, by their positions in the mesh."""

    axes: tuple[str, ...]
    members: list[list[int]]
    comm: MPI.Intracomm | None

    @property
    def size(self):
        return len(self.members[0])

    def rank(self):
        return lax.axis_index(self.axes)


@functools.cache
def meshes():
    """Of one and of two axes, with the devices in the order of ranks or in another one."""
    divisor = 2 if SIZE % 2 == 0 else 1
    shapes = [(SIZE,), (divisor, SIZE // divisor), (SIZE // divisor, divisor)]
    orders = [np.arange(SIZE), np.random.default_rng(0).permutation(SIZE)]
    devices = np.array(jax.devices())
    return [
        (Mesh(devices[order].reshape(shape), ("i", "j")[: len(shape)]), order)
        for shape in shapes
        for order in orders
    ]


@functools.cache
def axes_of(mesh):
    """The axes along which operations go, and the positions of the members there."""
    names = mesh.axis_names
    choices = [names] if len(names) == 1 else [names, names, ("i",), ("j",), ("j", "i")]
    positions = np.arange(SIZE).reshape(mesh.devices.shape)
    result = []
    for axes in choices:
        numbers = [names.index(axis) for axis in axes]
        moved = np.moveaxis(positions, numbers, range(-len(axes), 0))
        count = int(np.prod([mesh.devices.shape[number] for number in numbers]))
        result.append((axes, moved.reshape(-1, count).tolist()))
    return result


@functools.cache
def larger_magnitude():
    """An operator of our own."""

    def call(a, b, datatype):
        dtype = {8: np.float64, 4: np.float32}[datatype.Get_size()]
        a, b = np.frombuffer(a, dtype), np.frombuffer(b, dtype)
        b[...] = np.where(abs(a) > abs(b), a, b)

    return MPI.Op.Create(call, commute=True)


# Operations. Each makes two functions of the loops' turn and of two arrays: that of a
# process's own arrays, and that of the rows of all members of the group.


class Choices(NamedTuple):
    """What an operation may choose."""

    choose: random.Random
    numbers: np.random.Generator
    group: Group
    dtype: str
    shape: tuple[int, ...]

    def weights(self, *shape):
        return self.numbers.uniform(-1, 1, shape).astype(self.dtype)


def permuted(rows, tables, turn, otherwise):
    sources = tables[turn % len(tables)]
    return np.array(
        [otherwise[k] if s == NULL else rows[s] for k, s in enumerate(sources)]
    ).reshape(rows.shape)


def extremum(rows, sign=1):
    """The largest row, or the mean of those that are equal, as a derivative takes it."""
    largest = (sign * rows.real).max(0)
    attains = sign * rows.real == largest
    return np.where(attains, rows, 0).sum(0) / attains.sum(0)


def distinct(x, rank):
    """Arrays of different ranks, of which none are equal."""
    return x * (1 + rank / 16) + rank / 64


def distinct_rows(rows):
    ranks = np.arange(len(rows)).reshape(-1, *(1,) * (rows.ndim - 1))
    return distinct(rows, ranks)


def repeated(row, rows):
    return np.broadcast_to(row, rows.shape)


def cumulated(function, rows):
    return np.array([function(rows[: k + 1]) for k in range(len(rows))])


#: Which give the same on all members of the group.
SAME, DIFFERENT, CONSTANT = {}, {}, {}


def operation(kinds):
    def register(make):
        kinds[make.__name__] = make
        return make

    return register


@operation(SAME)
def allreduce(c):
    def run(turn, x, y):
        return mpi.allreduce(x, MPI.SUM, comm=c.group.comm) / c.group.size

    return run, lambda turn, x, y: repeated(x.mean(0), x)


@operation(SAME)
def allreduce_max(c):
    op, sign = c.choose.choice([(MPI.MAX, 1), (MPI.MIN, -1)])

    def run(turn, x, y):
        return mpi.allreduce(distinct(x, c.group.rank()), op, comm=c.group.comm)

    return run, lambda turn, x, y: repeated(extremum(distinct_rows(x), sign), x)


@operation(SAME)
def allreduce_prod(c):
    def run(turn, x, y):
        return mpi.allreduce(jnp.cos(x), MPI.PROD, comm=c.group.comm)

    return run, lambda turn, x, y: repeated(np.cos(x).prod(0), x)


@operation(SAME)
def bcast(c):
    root = rank_of(c)

    def run(turn, x, y):
        return mpi.bcast(x, root(turn, c.group), comm=c.group.comm)

    return run, lambda turn, x, y: repeated(x[root(turn)], x)


@operation(SAME)
def allgather(c):
    weights = c.weights(c.group.size)

    def run(turn, x, y):
        return jnp.tensordot(weights, mpi.allgather(x, comm=c.group.comm), 1)

    return run, lambda turn, x, y: repeated(np.tensordot(weights, x, 1), x)


@operation(SAME)
def psum(c):
    function = c.choose.choice(
        [lax.pmean, lambda x, axes: lax.psum(x, axes) / c.group.size]
    )
    return (
        lambda turn, x, y: function(x, c.group.axes),
        lambda turn, x, y: repeated(x.mean(0), x),
    )


def rank_of(c):
    """A rank that is known, or that follows from the loops' turn or from another rank."""
    first, size = c.choose.randrange(c.group.size), c.group.size
    kind = c.choose.randrange(3)

    def call(turn, group=None):
        if kind == 0:
            return first
        rank = (first + turn) % size
        return rank + 0 * group.rank() if kind == 2 and group else rank

    return call


@operation(DIFFERENT)
def scan(c):
    if c.choose.random() < 0.5:
        return (
            lambda turn, x, y: mpi.scan(x, MPI.SUM, comm=c.group.comm) / c.group.size,
            lambda turn, x, y: np.cumsum(x, 0) / c.group.size,
        )
    return (
        lambda turn, x, y: mpi.scan(
            distinct(x, c.group.rank()), MPI.MAX, comm=c.group.comm
        ),
        lambda turn, x, y: cumulated(extremum, distinct_rows(x)),
    )


@operation(DIFFERENT)
def exscan(c):
    if c.choose.random() < 0.5:
        return (
            lambda turn, x, y: mpi.exscan(x, MPI.SUM, comm=c.group.comm) / c.group.size,
            lambda turn, x, y: (np.cumsum(x, 0) - x) / c.group.size,
        )
    return (
        lambda turn, x, y: mpi.exscan(jnp.cos(x), MPI.PROD, comm=c.group.comm),
        lambda turn, x, y: np.array([np.cos(x[:k]).prod(0) for k in range(len(x))]),
    )


@operation(DIFFERENT)
def reduce(c):
    root = rank_of(c)
    op, sign = c.choose.choice([(MPI.SUM, 0), (MPI.MAX, 1)])

    def run(turn, x, y):
        x = distinct(x, c.group.rank())
        return mpi.reduce(x, op, root(turn, c.group), comm=c.group.comm) / c.group.size

    def expect(turn, x, y):
        x = distinct_rows(x)
        result = x.copy()
        result[root(turn)] = extremum(x) if sign else x.sum(0)
        return result / c.group.size

    return run, expect


@operation(DIFFERENT)
def gather(c):
    root, weights = rank_of(c), c.weights(c.group.size)

    def run(turn, x, y):
        gathered = mpi.gather(x, root(turn, c.group), comm=c.group.comm)
        return jnp.tensordot(weights, gathered, 1)

    def expect(turn, x, y):
        result = np.zeros_like(x)
        result[root(turn)] = np.tensordot(weights, x, 1)
        return result

    return run, expect


def table_of_weights(c):
    return c.weights(c.group.size, *(1,) * len(c.shape))


@operation(DIFFERENT)
def scatter(c):
    root, weights = rank_of(c), table_of_weights(c)

    def run(turn, x, y):
        return mpi.scatter(x * weights, root(turn, c.group), comm=c.group.comm)

    return run, lambda turn, x, y: x[root(turn)] * weights


@operation(DIFFERENT)
def alltoall(c):
    weights, others = table_of_weights(c), c.weights(c.group.size)

    def run(turn, x, y):
        return jnp.tensordot(others, mpi.alltoall(x * weights, comm=c.group.comm), 1)

    return run, lambda turn, x, y: np.tensordot(others, x, 1) * weights


@operation(DIFFERENT)
def reduce_scatter(c):
    weights = table_of_weights(c)

    def run(turn, x, y):
        total = mpi.reduce_scatter(x * weights, MPI.SUM, comm=c.group.comm)
        return total / c.group.size

    return run, lambda turn, x, y: x.mean(0) * weights


@operation(DIFFERENT)
def shift(c):
    """In a ring, or to the others in line, by a distance that may follow from the turn."""
    first, is_ring, size = c.choose.randint(1, 2), c.choose.random() < 0.5, c.group.size
    by_turn, tag = c.choose.randrange(2), c.choose.randrange(3)

    def run(turn, x, y):
        rank, distance = c.group.rank(), first + by_turn * turn
        source, dest = rank - distance, rank + distance
        if is_ring:
            source, dest = source % size, dest % size
        else:
            source = jnp.where(source >= 0, source, NULL)
            dest = jnp.where(dest < size, dest, NULL)
        tags = {"sendtag": tag, "recvtag": tag} if tag else {}
        return mpi.sendrecv(x, y, source, dest, comm=c.group.comm, **tags)

    def expect(turn, x, y):
        distance = first + by_turn * int(turn)
        if is_ring:
            return np.roll(x, distance, 0)
        return np.concatenate([y[:distance], x[: max(size - distance, 0)]])

    return run, expect


def random_tables(c, is_pairs=False):
    """Who receives from whom and sends to whom: two tables, between which turns change."""
    size, sources, dests = c.group.size, [], []
    for _ in range(2):
        senders, receivers = (c.choose.sample(range(size), size) for _ in range(2))
        count = c.choose.randint(0, size)
        if is_pairs:  # each sends or receives
            senders, receivers = senders[: size // 2], senders[size // 2 :]
        sources.append([NULL] * size)
        dests.append([NULL] * size)
        for sender, receiver in list(zip(senders, receivers))[:count]:  # noqa: B905
            sources[-1][receiver], dests[-1][sender] = sender, receiver
    return np.array(sources, np.int32), np.array(dests, np.int32)


@operation(DIFFERENT)
def permute(c):
    sources, dests = random_tables(c)

    def run(turn, x, y):
        source, dest = (jnp.asarray(t)[turn % 2, c.group.rank()] for t in (sources, dests))
        return mpi.sendrecv(x, y, source, dest, comm=c.group.comm)

    return run, lambda turn, x, y: permuted(x, sources, turn, y)


@operation(DIFFERENT)
def linear_messages(c):
    """Pairs of send and recv, whose token carries derivatives."""
    sources, dests = random_tables(c, is_pairs=True)

    def run(turn, x, y):
        source, dest = (jnp.asarray(t)[turn % 2, c.group.rank()] for t in (sources, dests))
        token = mpi4jax.create_token((x, y))
        token = tokens.send(x, dest, token=token, comm=c.group.comm)
        result, token = tokens.recv(y, source, token=token, comm=c.group.comm)
        return mpi4jax.tie(result, token)

    return run, lambda turn, x, y: permuted(x, sources, turn, y)


@operation(DIFFERENT)
def rows(c):
    """Of each process some elements, as many as the program says."""
    count, size = int(np.prod(c.shape)), c.group.size
    weights = c.weights(size * count + 1)

    def run(turn, x, y):
        own, comm = (c.group.rank() + turn) % (count + 1), c.group.comm
        options = {"capacity": len(weights), "comm": comm}
        return x + weights @ mpi.allgatherv(x.ravel(), own, **options)[0]

    def expect(turn, x, y):
        parts = [row.ravel()[: (k + turn) % (count + 1)] for k, row in enumerate(x)]
        all_rows = np.concatenate(parts)
        return x + weights[: len(all_rows)] @ all_rows

    return run, expect


@operation(DIFFERENT)
def rows_to_one(c):
    """All elements to the process at some distance."""
    count, size = int(np.prod(c.shape)), c.group.size
    distance, weights = c.choose.randrange(size), c.weights(int(np.prod(c.shape)) + 2)

    def run(turn, x, y):
        dest = (c.group.rank() + distance + turn) % size
        counts = jnp.where(jnp.arange(size) == dest, count, 0)
        options = {"capacity": len(weights), "comm": c.group.comm}
        return x + weights @ mpi.alltoallv(x.ravel(), counts, **options)[0]

    def expect(turn, x, y):
        came = np.roll(x, distance + int(turn), 0).reshape(size, count)
        return x + (came @ weights[:count]).reshape(-1, *(1,) * len(c.shape))

    return run, expect


@operation(DIFFERENT)
def barrier(c):
    def run(turn, x, y):
        mpi.barrier(comm=c.group.comm)
        return x - y

    return run, lambda turn, x, y: x - y


@operation(DIFFERENT)
def ppermute(c):
    sources, _ = random_tables(c)
    pairs = [(int(s), k) for k, s in enumerate(sources[0]) if s != NULL]
    return (
        lambda turn, x, y: lax.ppermute(x, c.group.axes, pairs),
        lambda turn, x, y: permuted(x, sources, 0, np.zeros_like(x)),
    )


@operation(DIFFERENT)
def all_gather(c):
    weights = c.weights(c.group.size)

    def run(turn, x, y):
        return jnp.tensordot(weights, lax.all_gather(x, c.group.axes), 1)

    return run, lambda turn, x, y: repeated(np.tensordot(weights, x, 1), x)


@operation(DIFFERENT)
def psum_scatter(c):
    weights = table_of_weights(c)
    return (
        lambda turn, x, y: lax.psum_scatter(x * weights, c.group.axes) / c.group.size,
        lambda turn, x, y: x.mean(0) * weights,
    )


@operation(DIFFERENT)
def all_to_all(c):
    weights, others = table_of_weights(c), c.weights(c.group.size)

    def run(turn, x, y):
        moved = lax.all_to_all(x * weights, c.group.axes, 0, 0)
        return jnp.tensordot(others, moved, 1)

    return run, lambda turn, x, y: np.tensordot(others, x, 1) * weights


@operation(CONSTANT)
def messages(c):
    sources, dests = random_tables(c, is_pairs=True)
    tag = c.choose.randrange(3)

    def run(turn, x, y):
        source, dest = (jnp.asarray(t)[turn % 2, c.group.rank()] for t in (sources, dests))
        mpi.send(x, dest, tag=tag, comm=c.group.comm)
        return mpi.recv(y, source, tag=tag, comm=c.group.comm)

    return run, lambda turn, x, y: permuted(x, sources, turn, y)


@operation(CONSTANT)
def operator_of_our_own(c):
    def run(turn, x, y):
        return mpi.allreduce(x, larger_magnitude(), comm=c.group.comm)

    def expect(turn, x, y):
        largest = np.abs(x).argmax(0)[None]
        return repeated(np.take_along_axis(x, largest, 0), x)

    return run, expect


@operation(CONSTANT)
def pmax(c):
    return (
        lambda turn, x, y: lax.pmax(x, c.group.axes),
        lambda turn, x, y: repeated(x.max(0), x),
    )


@operation(CONSTANT)
def integers(c):
    def run(turn, x, y):
        return x + mpi.scan(c.group.rank() + 1, MPI.SUM, comm=c.group.comm) / 8

    def expect(turn, x, y):
        sums = np.cumsum(np.arange(len(x)) + 1)
        return x + sums.reshape(-1, *(1,) * (x.ndim - 1)) / 8

    return run, expect


ALL = {**SAME, **DIFFERENT, **CONSTANT}
#: JAX's, which refuse an operand that is the same on all members (`check_vma`).
OF_VARYING = ["all_gather", "all_to_all", "ppermute", "psum_scatter", "pmax", "psum"]


class Writer:
    """Makes up a program on the rows of all processes, and what NumPy makes of them.

    Each part of it is two functions of the loops' turn and of a list of arrays, like an
    operation's. In a `shard_map` the arrays are a process's rows, outside of it whole.
    """

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.mode = self.choose.choice(MODES)
        self.dtype = self.choose.choice(["float64"] * 4 + ["float32"])
        if self.mode == "second":
            self.dtype = "float64"
        self.is_checked = self.choose.random() < 0.5
        self.mesh, self.order = self.choose.choice(meshes())
        self.shape = self.choose.choice(SHAPES)
        if 0 in self.shape:
            # JAX has bugs of its own in derivatives with respect to nothing.
            self.mode = "values"
        self.may_differentiate = self.mode == "values" and 0 not in self.shape
        self.lines = [
            f"{self.mode}, {self.dtype}{list(self.shape)}, check_vma={self.is_checked}, "
            f"{dict(self.mesh.shape)} of processes {self.order.tolist()}"
        ]
        self.is_inside = False
        self.left = self.choose.randint(3, 8)
        self.run, self.expect = self.sequence(self.shape, depth=0, count=3)

    def note(self, depth, text):
        self.lines.append("|  " * (depth + 1) + text)

    # What a program consists of.

    def sequence(self, shape, depth, count):
        """Some parts, one after the other."""
        parts = [self.part(shape, depth) for k in range(count) if k == 0 or self.left > 0]

        def run(turn, arrays):
            for run, _ in parts:
                arrays = run(turn, arrays)
            return arrays

        def expect(turn, arrays):
            for _, expect in parts:
                arrays = expect(turn, arrays)
            return arrays

        return run, expect

    def part(self, shape, depth):
        kinds = [self.call] * 6 + [self.compute] if self.is_inside else [self.shard_map] * 4
        if not self.is_inside:
            kinds += [self.compute_outside]
        if depth < 3:
            kinds += self.structures(shape)
        return self.choose.choice(kinds)(shape, depth)

    def structures(self, shape):
        kinds = [self.fori_loop, self.scan, self.cond, self.remat, self.jit]
        if self.mode == "values":
            kinds += [self.while_loop]
        if self.may_differentiate and self.is_inside and len(shape) < 2:
            kinds += [self.gradient]
        if shape and shape[0] > 0:
            kinds += [self.vmap]
        return kinds

    def inner(self, shape, depth):
        return self.sequence(shape, depth + 1, self.choose.randint(1, 3))

    def random_group(self, is_whole=False):
        axes, members = self.choose.choice(axes_of(self.mesh)[: 1 if is_whole else None])
        comm = mpi4jax.axis_comm(self.mesh, axes)
        is_in_order = np.all(self.order == np.arange(SIZE))
        if axes == self.mesh.axis_names and is_in_order:
            comm = self.choose.choice([None, OTHER, comm])
        return Group(axes, members, comm)

    def operation(self, names, shape, depth, is_whole=False):
        """A call along some axes, which each process does with its own arrays."""
        name, group = self.choose.choice(names), self.random_group(is_whole)
        self.left -= 1
        self.note(depth, f"{name} along {', '.join(group.axes)}")
        choices = Choices(self.choose, self.numbers, group, self.dtype, shape)
        run, expect_of_group = ALL[name](choices)

        def run_step(turn, x, y):
            if name in CONSTANT:
                x, y = lax.stop_gradient((x, y))
            if name in OF_VARYING:
                x = self.vary(x)
            return run(turn, x, y)

        def expect(turn, x, y):
            if name in CONSTANT:
                x, y = x.real, y.real
            result = np.empty(x.shape, complex)
            for members in group.members:
                result[members] = expect_of_group(turn, x[members], y[members])
            return result

        return run_step, expect

    def vary(self, x):
        """What JAX takes for the same on all processes may become a loop's variable."""
        if not self.is_checked:
            return x
        return vary(x, self.mesh.axis_names)

    # Steps inside of a shard_map.

    def call(self, shape, depth):
        """One operation, or one of the result of another."""
        x, y, target = (self.choose.randrange(REGISTERS) for _ in range(3))
        # Differences between values, for second derivatives, are not those of constants.
        names = [name for name in ALL if self.mode != "second" or name not in CONSTANT]
        first, second = self.operation(names, shape, depth), None
        if self.choose.random() < 0.3:
            second = self.operation(names, shape, depth)

        def combined(index, turn, arrays):
            result = first[index](turn, arrays[x], arrays[y])
            if second:
                result = second[index](turn, result, arrays[target])
            return 0.5 * arrays[target] + result

        def run(turn, arrays):
            return replaced(arrays, target, self.vary(combined(0, turn, arrays)))

        def expect(turn, arrays):
            return replaced(arrays, target, combined(1, turn, arrays))

        return run, expect

    def compute(self, shape, depth):
        """Something of a process's own, or a branch of its own."""
        x, y, target = (self.choose.randrange(REGISTERS) for _ in range(3))
        ranks = np.arange(SIZE).reshape(-1, *(1,) * len(shape))
        if self.choose.random() < 0.5:
            self.note(depth, "branch of a rank's own")

            def run(turn, arrays):
                rank = lax.axis_index(self.mesh.axis_names)
                new = lax.cond(rank % 2 == 0, jnp.sin, jnp.cos, arrays[x])
                return replaced(arrays, target, new)

            def expect(turn, arrays):
                new = np.where(ranks % 2 == 0, np.sin(arrays[x]), np.cos(arrays[x]))
                return replaced(arrays, target, new)

            return run, expect
        self.note(depth, "arithmetic")

        def arithmetic(library, rank, arrays):
            product = library.tanh(arrays[x] * arrays[y])
            return replaced(arrays, target, product + arrays[target] * (rank + 1) / 8)

        return (
            lambda turn, arrays: arithmetic(
                jnp, lax.axis_index(self.mesh.axis_names), arrays
            ),
            lambda turn, arrays: arithmetic(np, ranks, arrays),
        )

    # Steps outside of it.

    def shard_map(self, shape, depth):
        self.note(depth, "shard_map")
        self.is_inside = True
        inner_run, inner_expect = self.inner(shape, depth)
        # One more result, which is the same on all processes.
        last = self.operation(list(SAME), shape, depth + 1, is_whole=True)
        self.is_inside = False
        rows = P(self.mesh.axis_names)

        def body(turn, *arrays):
            arrays = inner_run(turn, [x[0] for x in arrays])
            same = last[0](turn, *arrays[:2])
            return [x[None] for x in arrays], same

        def run(turn, arrays):
            specs = {"in_specs": (P(), *[rows] * REGISTERS), "mesh": self.mesh}
            specs["out_specs"] = [rows] * REGISTERS, P()
            mapped = jax.shard_map(body, check_vma=self.is_checked, **specs)
            arrays, same = mapped(turn, *arrays)
            return replaced(arrays, 2, arrays[2] - 0.5 * same)

        def expect(turn, arrays):
            arrays = inner_expect(turn, arrays)
            same = last[1](turn, *arrays[:2])[0]
            return replaced(arrays, 2, arrays[2] - 0.5 * same)

        return run, expect

    def compute_outside(self, shape, depth):
        """What XLA divides among the processes."""
        x, target = (self.choose.randrange(REGISTERS) for _ in range(2))
        matrix = self.numbers.uniform(-1, 1, (SIZE, SIZE)).astype(self.dtype)
        name, function = self.choose.choice(
            [
                ("mean", lambda library, x: x * x.mean(0)),
                ("roll", lambda library, x: library.roll(x, 1, 0)),
                (
                    "matrix product",
                    lambda library, x: library.tensordot(matrix, x, 1) / SIZE,
                ),
                ("sum", lambda library, x: library.tanh(x.sum()) + x),
                ("reversal", lambda library, x: library.sin(x[::-1])),
            ]
        )
        self.note(depth, name)

        def step(library, arrays):
            new = 0.5 * arrays[target] + function(library, arrays[x])
            return replaced(arrays, target, new)

        return (
            lambda turn, arrays: step(jnp, arrays),
            lambda turn, arrays: step(np, arrays),
        )

    # Structure, inside and outside.

    def fori_loop(self, shape, depth):
        trips = self.choose.randint(1, 3)
        self.note(depth, f"fori_loop of {trips}")
        inner_run, inner_expect = self.inner(shape, depth)

        def run(turn, arrays):
            return lax.fori_loop(0, trips, lambda k, xs: inner_run(turn + k, xs), arrays)

        def expect(turn, arrays):
            for k in range(trips):
                arrays = inner_expect(turn + k, arrays)
            return arrays

        return run, expect

    def scan(self, shape, depth):
        trips, is_reversed = self.choose.randint(1, 3), self.choose.random() < 0.5
        unroll = self.choose.randint(1, 2)
        self.note(depth, f"scan of {trips}, reverse={is_reversed}, unroll={unroll}")
        inner_run, inner_expect = self.inner(shape, depth)
        options = {"reverse": is_reversed, "unroll": unroll}

        def run(turn, arrays):
            def step(arrays, turn):
                arrays = inner_run(turn, arrays)
                return arrays, arrays[0]

            turns = turn + jnp.arange(trips)
            arrays, seen = lax.scan(step, arrays, turns, **options)
            return replaced(arrays, 2, arrays[2] + seen.mean(0))

        def expect(turn, arrays):
            seen = 0
            for k in range(trips)[:: -1 if is_reversed else 1]:
                arrays = inner_expect(turn + k, arrays)
                seen = seen + arrays[0]
            return replaced(arrays, 2, arrays[2] + seen / trips)

        return run, expect

    def while_loop(self, shape, depth):
        """With a call in the condition, if that is possible."""
        trips, is_ours = self.choose.randint(1, 3), self.choose.random() < 0.5
        calls = self.is_inside
        group = self.random_group(is_whole=True)
        self.note(depth, f"while_loop of {trips}, ours={is_ours}")
        inner_run, inner_expect = self.inner(shape, depth)

        def run(turn, arrays):
            def proceeds(state):
                k, _ = state
                if not calls:
                    return k < trips
                if is_ours:
                    return mpi.allreduce(k, MPI.SUM, comm=group.comm) < trips * SIZE
                return lax.psum(k, group.axes) < trips * SIZE

            def step(state):
                k, arrays = state
                return k + 1, inner_run(turn + k, arrays)

            return lax.while_loop(proceeds, step, (jnp.int32(0), arrays))[1]

        def expect(turn, arrays):
            for k in range(trips):
                arrays = inner_expect(turn + k, arrays)
            return arrays

        return run, expect

    def cond(self, shape, depth):
        """By the turn, or by a sum over all processes, which in float32 may be inexact."""
        kinds = ["turn", "ours", "psum"] if self.is_inside else ["turn", "sum"]
        kind = self.choose.choice(kinds) if self.dtype == "float64" else "turn"
        limit, group = self.choose.uniform(-1, 1), self.random_group(is_whole=True)
        self.note(depth, f"cond by {kind}")
        run_if, expect_if = self.inner(shape, depth)
        self.note(depth, "or else")
        run_else, expect_else = self.inner(shape, depth)

        def predicate(turn, arrays):
            own = jnp.sum(arrays[0])
            return {
                "turn": lambda: turn % 2 == 0,
                "ours": lambda: mpi.allreduce(own, MPI.SUM, comm=group.comm) > limit,
                "psum": lambda: lax.psum(own, group.axes) > limit,
                "sum": lambda: own > limit,
            }[kind]()

        def run(turn, arrays):
            branches = functools.partial(run_if, turn), functools.partial(run_else, turn)
            return lax.cond(predicate(turn, arrays), *branches, arrays)

        def expect(turn, arrays):
            is_true = turn % 2 == 0 if kind == "turn" else arrays[0].real.sum() > limit
            return (expect_if if is_true else expect_else)(turn, arrays)

        return run, expect

    def remat(self, shape, depth):
        self.note(depth, "checkpoint")
        run, expect = self.inner(shape, depth)
        return jax.checkpoint(run), expect

    def jit(self, shape, depth):
        self.note(depth, "jit")
        run, expect = self.inner(shape, depth)
        return jax.jit(run), expect

    def vmap(self, shape, depth):
        """Over the first axis of a row, with a turn for each or for all."""
        has_turns, axis = self.choose.random() < 0.5, 0 if self.is_inside else 1
        self.note(depth, f"vmap of {shape[0]}, turns={has_turns}")
        inner_run, inner_expect = self.inner(shape[1:], depth)

        def run(turn, arrays):
            turns = turn + jnp.arange(shape[0]) if has_turns else turn
            axes = (0 if has_turns else None), axis
            return jax.vmap(inner_run, axes, axis)(turns, arrays)

        def expect(turn, arrays):
            parts = [
                inner_expect(turn + k * has_turns, [x[:, k] for x in arrays])
                for k in range(shape[0])
            ]
            return [np.stack(xs, 1) for xs in zip(*parts, strict=True)]

        return run, expect

    def gradient(self, shape, depth):
        """Of losses that all processes have, each with weights of its own."""
        self.note(depth, "gradient")
        self.may_differentiate = False
        mode, self.mode = self.mode, "gradient"
        inner_run, inner_expect = self.inner(shape, depth)
        self.may_differentiate, self.mode = True, mode
        weights = self.random_rows(shape)

        def run(turn, arrays):
            rank = lax.axis_index(self.mesh.axis_names)

            def loss(arrays):
                own = [jnp.asarray(w)[rank] for w in weights]
                return weighted(inner_run(turn, arrays), own)

            return jax.grad(loss)(arrays)

        def expect(turn, arrays):
            return gradient_of(
                lambda arrays: weighted(inner_expect(turn, arrays), weights), arrays
            )

        return run, expect

    def random_rows(self, shape):
        """An array of the rows of all processes for each variable."""
        shapes = (REGISTERS, SIZE, *shape)
        return list(self.numbers.uniform(-1, 1, shapes).astype(self.dtype))


def replaced(arrays, target, array):
    return [*arrays[:target], array, *arrays[target + 1 :]]


def weighted(arrays, weights):
    return sum((x * w).sum() for x, w in zip(arrays, weights, strict=True))


def tangent_of(function, arrays, directions):
    """The results' derivatives, by the complex step."""
    pairs = zip(arrays, directions, strict=True)
    return [
        y.imag / IMAGINARY_STEP
        for y in function([x + 1j * IMAGINARY_STEP * v for x, v in pairs])
    ]


def gradient_of(function, arrays, rows=slice(None)):
    """That of a number, with respect to some rows. Others are zero."""
    gradient = [np.zeros(x.shape) for x in arrays]
    for k, x in enumerate(arrays):
        for index in np.ndindex(x.shape):
            if index[0] in range(SIZE)[rows]:
                moved = x.astype(complex)
                moved[index] += 1j * IMAGINARY_STEP
                value = function(replaced(arrays, k, moved))
                gradient[k][index] = value.imag / IMAGINARY_STEP
    return gradient


def what_is_computed(writer, turn):
    """The function that is compiled, and what it gives for rows in NumPy, by the mode."""
    cotangents, others, directions = (writer.random_rows(writer.shape) for _ in range(3))
    own = writer.order.tolist().index(RANK)
    pushed = list(map(jnp.asarray, directions))

    def loss(arrays, turn):
        return weighted(writer.run(turn, arrays), cotangents)

    def expected_gradient(arrays, cotangents=cotangents):
        return gradient_of(
            lambda xs: weighted(writer.expect(turn, xs), cotangents),
            arrays,
            slice(own, own + 1),
        )

    def pullbacks(arrays, turn):
        _, pull = jax.vjp(lambda arrays: writer.run(turn, arrays), arrays)
        pairs = zip(cotangents, others, strict=True)
        (both,) = jax.vmap(pull)([jnp.stack(pair) for pair in pairs])
        return [x[0] + 2 * x[1] for x in both]

    def tangent(arrays, turn):
        return jax.jvp(lambda arrays: writer.run(turn, arrays), (arrays,), (pushed,))[1]

    def second(arrays, turn):
        return jax.jvp(lambda xs: jax.grad(loss)(xs, turn), (arrays,), (pushed,))[1]

    def expected_second(arrays):
        ends = []
        for step in (REAL_STEP, -REAL_STEP):
            pairs = zip(arrays, directions, strict=True)
            ends.append(expected_gradient([x + step * v for x, v in pairs]))
        return [(x - y) / (2 * REAL_STEP) for x, y in zip(*ends, strict=True)]

    return {
        "values": (
            lambda arrays, turn: writer.run(turn, arrays),
            lambda arrays: writer.expect(turn, arrays),
        ),
        "gradient": (jax.grad(loss), expected_gradient),
        "tangent": (
            tangent,
            lambda arrays: tangent_of(
                lambda arrays: writer.expect(turn, arrays), arrays, directions
            ),
        ),
        "pullbacks": (
            pullbacks,
            lambda arrays: expected_gradient(
                arrays, [x + 2 * y for x, y in zip(cotangents, others, strict=True)]
            ),
        ),
        "second": (second, expected_second),
    }[writer.mode]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed, spread, assert_is):
    writer = Writer(seed)
    arrays, turn = writer.random_rows(writer.shape), writer.choose.randrange(3)
    is_donated = writer.choose.random() < 0.5
    print(f"seed {seed}, turn {turn}, donated={is_donated}", *writer.lines, sep="\n")
    function, expect = what_is_computed(writer, turn)
    program = jax.jit(
        function,
        donate_argnums=(0,) if is_donated else (),
        out_shardings=NamedSharding(writer.mesh, P(writer.mesh.axis_names)),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        # Both are on the way at the same time.
        results = [
            program(
                [spread(x, writer.mesh, writer.mesh.axis_names) for x in arrays],
                jnp.int32(turn),
            )
            for _ in range(2)
        ]
    expected = expect([x.astype(float) for x in arrays])
    tolerance = 1e-6 if writer.mode == "second" else TOLERANCES[writer.dtype]
    for result in results:
        for actual, x in zip(result, expected, strict=True):
            assert_is(actual, x.real.astype(writer.dtype), rtol=tolerance, atol=tolerance)
