"""Operations of random programs on meshes: ours, and JAX's collectives.

Each makes two functions of the loops' turn and of two arrays: a function of a process's own
arrays, which JAX traces, and a function of the rows of all members of a group, in NumPy.
Rows may be complex, so that an imaginary step gives derivatives.
"""

import functools
import math
import random
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from mpi4py import MPI

import mpi4jax
from mpi4jax import halo
from mpi4jax import notoken as mpi
from mpi4jax.experimental import tokens

SIZE = MPI.COMM_WORLD.Get_size()
NULL = MPI.PROC_NULL


class Group(NamedTuple):
    """The processes along some axes of a mesh, by their positions in the mesh."""

    mesh: Mesh
    axes: tuple[str, ...]
    members: list[list[int]]
    comm: MPI.Intracomm | None

    @property
    def size(self):
        return len(self.members[0])

    def rank(self):
        return lax.axis_index(self.axes)

    def in_order_of_mesh(self):
        """The axes in the order of the mesh's, and with that the rank of each member."""
        order = np.argsort([self.mesh.axis_names.index(axis) for axis in self.axes])
        shape = [self.mesh.shape[axis] for axis in self.axes]
        members = np.arange(self.size).reshape(shape).transpose(order).ravel()
        return tuple(self.axes[n] for n in order), np.argsort(members).tolist()


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
        selected = [names.index(axis) for axis in axes]
        moved = np.moveaxis(positions, selected, range(-len(axes), 0))
        count = int(np.prod([mesh.devices.shape[position] for position in selected]))
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


class Started:
    """The operations of mpi4jax, each of which is waited for after something else."""

    def __init__(self):
        self.during = self.result = None

    def __getattr__(self, name):
        start = getattr(mpi, f"i{name}")

        def call(*args, **kwargs):
            request = start(*args, **kwargs)
            self.result = self.during()
            return mpi.wait(request)

        return call


class Choices(NamedTuple):
    """What an operation may choose, how it calls mpi4jax, and what prints a line of it."""

    choose: random.Random
    numbers: np.random.Generator
    group: Group
    dtype: str
    shape: tuple[int, ...]
    note: Callable[[str], None]
    mpi: ModuleType | Started = mpi

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
        return c.mpi.allreduce(x, MPI.SUM, comm=c.group.comm) / c.group.size

    return run, lambda turn, x, y: repeated(x.mean(0), x)


@operation(SAME)
def allreduce_max(c):
    op, sign = c.choose.choice([(MPI.MAX, 1), (MPI.MIN, -1)])

    def run(turn, x, y):
        return c.mpi.allreduce(distinct(x, c.group.rank()), op, comm=c.group.comm)

    return run, lambda turn, x, y: repeated(extremum(distinct_rows(x), sign), x)


@operation(SAME)
def allreduce_prod(c):
    def run(turn, x, y):
        return c.mpi.allreduce(jnp.cos(x), MPI.PROD, comm=c.group.comm)

    return run, lambda turn, x, y: repeated(np.cos(x).prod(0), x)


@operation(SAME)
def bcast(c):
    root = rank_of(c)

    def run(turn, x, y):
        return c.mpi.bcast(x, root(turn, c.group), comm=c.group.comm)

    return run, lambda turn, x, y: repeated(x[root(turn)], x)


@operation(SAME)
def allgather(c):
    weights = c.weights(c.group.size)

    def run(turn, x, y):
        return jnp.tensordot(weights, c.mpi.allgather(x, comm=c.group.comm), 1)

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
            lambda turn, x, y: c.mpi.scan(x, MPI.SUM, comm=c.group.comm) / c.group.size,
            lambda turn, x, y: np.cumsum(x, 0) / c.group.size,
        )
    return (
        lambda turn, x, y: c.mpi.scan(
            distinct(x, c.group.rank()), MPI.MAX, comm=c.group.comm
        ),
        lambda turn, x, y: cumulated(extremum, distinct_rows(x)),
    )


@operation(DIFFERENT)
def exscan(c):
    if c.choose.random() < 0.5:
        return (
            lambda turn, x, y: c.mpi.exscan(x, MPI.SUM, comm=c.group.comm) / c.group.size,
            lambda turn, x, y: (np.cumsum(x, 0) - x) / c.group.size,
        )
    return (
        lambda turn, x, y: c.mpi.exscan(jnp.cos(x), MPI.PROD, comm=c.group.comm),
        lambda turn, x, y: np.array([np.cos(x[:k]).prod(0) for k in range(len(x))]),
    )


@operation(DIFFERENT)
def reduce(c):
    root = rank_of(c)
    op, sign = c.choose.choice([(MPI.SUM, 0), (MPI.MAX, 1)])

    def run(turn, x, y):
        x = distinct(x, c.group.rank())
        return c.mpi.reduce(x, op, root(turn, c.group), comm=c.group.comm) / c.group.size

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
        gathered = c.mpi.gather(x, root(turn, c.group), comm=c.group.comm)
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
        return c.mpi.scatter(x * weights, root(turn, c.group), comm=c.group.comm)

    return run, lambda turn, x, y: x[root(turn)] * weights


@operation(DIFFERENT)
def alltoall(c):
    weights, others = table_of_weights(c), c.weights(c.group.size)

    def run(turn, x, y):
        return jnp.tensordot(others, c.mpi.alltoall(x * weights, comm=c.group.comm), 1)

    return run, lambda turn, x, y: np.tensordot(others, x, 1) * weights


@operation(DIFFERENT)
def reduce_scatter(c):
    weights = table_of_weights(c)

    def run(turn, x, y):
        total = c.mpi.reduce_scatter(x * weights, MPI.SUM, comm=c.group.comm)
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
        return c.mpi.sendrecv(x, y, source, dest, comm=c.group.comm, **tags)

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
        return c.mpi.sendrecv(x, y, source, dest, comm=c.group.comm)

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
        received = np.roll(x, distance + int(turn), 0).reshape(size, count)
        return x + (received @ weights[:count]).reshape(-1, *(1,) * len(c.shape))

    return run, expect


@operation(DIFFERENT)
def barrier(c):
    def run(turn, x, y):
        c.mpi.barrier(comm=c.group.comm)
        return x - y

    return run, lambda turn, x, y: x - y


@operation(DIFFERENT)
def ppermute(c):
    sources, _ = random_tables(c)
    # JAX before 0.12 counts ranks in the order of the mesh's axes, whatever that of the
    # names, and refuses another order since then.
    axes, ranks = c.group.in_order_of_mesh()
    pairs = [(ranks[s], ranks[k]) for k, s in enumerate(sources[0]) if s != NULL]
    return (
        lambda turn, x, y: lax.ppermute(x, axes, pairs),
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


@operation(DIFFERENT)
def exchange(c):
    """Messages of different sizes, each an array or two."""
    count = c.choose.randint(2, 3)
    tables = [random_tables(c) for _ in range(count)]
    sizes, are_trees = (
        c.choose.sample(range(2, 5), count),
        c.choose.choices([0, 1], k=count),
    )
    weights = [c.weights(size) for size in sizes]
    tags = c.choose.choice([0, c.choose.sample(range(9), count)])

    def multiples(x):
        arrays = [jnp.tensordot(w, x, 0) for w in weights]
        pairs = zip(arrays, are_trees, strict=True)
        return [{"first": z[:1], "others": z[1:]} if tree else z for z, tree in pairs]

    def run(turn, x, y):
        rank, comm = c.group.rank(), c.group.comm
        sources, dests = (
            [jnp.asarray(t)[turn % 2, rank] for t in kind]
            for kind in zip(*tables, strict=True)
        )
        options = {"sendtag": tags, "recvtag": tags, "comm": comm}
        received = c.mpi.exchange(multiples(x), multiples(y), sources, dests, **options)
        joined = [jnp.concatenate(jax.tree.leaves(message)) for message in received]
        return sum(jnp.tensordot(w, z, 1) for w, z in zip(weights, joined, strict=True))

    def expect(turn, x, y):
        pairs = zip(weights, tables, strict=True)
        return sum(w @ w * permuted(x, sources, turn, y) for w, (sources, _) in pairs)

    return run, expect


def cells_of_parts(dims, counts, widths, periods, has_corners):
    """The cells of the grid in each part with ghost cells: -1 where the grid has none."""
    sizes = [dim * count for dim, count in zip(dims, counts, strict=True)]
    cells = np.arange(math.prod(sizes)).reshape(sizes)
    for axis, is_periodic in enumerate(periods):
        padding = [width if k == axis else (0, 0) for k, width in enumerate(widths)]
        options = {"mode": "wrap"} if is_periodic else {"constant_values": -1}
        cells = np.pad(cells, padding, **options)
    with_ghosts = [n + sum(width) for n, width in zip(counts, widths, strict=True)]
    parts = np.array(
        [
            cells[
                tuple(
                    slice(k * n, k * n + count)
                    for k, n, count in zip(position, counts, with_ghosts, strict=True)
                )
            ]
            for position in np.ndindex(*dims)
        ]
    )
    if not has_corners:
        is_ghost = [
            np.pad(np.zeros(n), width, constant_values=1)
            for n, width in zip(counts, widths, strict=True)
        ]
        parts[:, sum(np.ix_(*is_ghost)) > 1] = -1
    return parts


@operation(DIFFERENT)
def ghost_cells(c):
    """A stencil on fields that the members divide, and sums over overlapping parts."""
    mesh, axes = c.group.mesh, c.group.axes
    dims, ndim = [mesh.shape[axis] for axis in axes], len(axes)
    counts = [c.choose.randint(2, 3) for _ in dims]
    widths = [(c.choose.randint(0, 2), c.choose.randint(0, 2)) for _ in dims]
    periods = [c.choose.random() < 0.5 for _ in dims]
    has_corners, overlaps = c.choose.random() < 0.5, c.choose.random() < 0.3
    c.note(f"{counts} cells, {widths}, {periods=}, {has_corners=}, {overlaps=}")
    options = {"axes": range(ndim), "names": axes, "periods": periods}
    plan = halo.Plan(mesh, widths, corners=has_corners, **options)
    cells = cells_of_parts(dims, counts, widths, periods, has_corners)
    own = (
        slice(None),
        *[slice(w[0], w[0] + n) for w, n in zip(widths, counts, strict=True)],
    )
    padding = [*widths, *[(0, 0)] * len(c.shape)]
    ones = (1,) * len(c.shape)
    spread, weights = c.weights(*counts, *ones), c.weights(*counts)
    factors = c.weights(*cells.shape[1:], *ones)

    def run(turn, x, y):
        u, v = plan.with_ghosts([spread * x, spread * y])
        u = jnp.pad(plan.without_ghosts(u - jnp.roll(u, 1, 0) / 2), padding)
        if overlaps:
            u, old = plan.exchange(u, during=jnp.sin)
        else:
            u, old = plan.exchange(u), jnp.sin(u)
        total = plan.without_ghosts(plan.accumulate(factors * (u + v) + old))
        return jnp.tensordot(weights, total, ndim)

    def exchanged(parts):
        whole = np.zeros((cells.max() + 2, *c.shape), parts.dtype)
        whole[cells[own]] = parts[own]
        return whole[cells]

    def expect(turn, x, y):
        x, y = (
            np.pad(
                spread * rows.reshape(len(rows), *(1,) * ndim, *c.shape), [(0, 0), *padding]
            )
            for rows in (x, y)
        )
        u, v = exchanged(x), exchanged(y)
        inner = (u - np.roll(u, 1, 1) / 2)[own]
        old = np.pad(inner, [(0, 0), *padding])
        u = exchanged(old)
        whole = np.zeros((cells.max() + 2, *c.shape), complex)
        np.add.at(whole, cells, factors * (u + v) + np.sin(old))
        return np.tensordot(whole[cells[own]], weights, [range(1, ndim + 1), range(ndim)])

    return run, expect


def sine(c):
    return lambda turn, x, y: jnp.sin(x), lambda turn, x, y: np.sin(x)


def in_flight(c, kinds):
    """An operation that is waited for after another one, or after arithmetic."""
    started, overlaps = Started(), c.choose.random() < 0.3
    name = c.choose.choice([name for name in kinds if name in NONBLOCKING])
    other_name = c.choose.choice(list(kinds))
    c.note(f"{name}, {overlaps=}, during it {other_name}")
    run_first, expect_first = kinds[name](c if overlaps else c._replace(mpi=started))
    run_other, expect_other = kinds[other_name](c)

    def run(turn, x, y):
        def during():
            return run_other(turn, y, y)

        if overlaps:
            result, other = mpi4jax.overlap(lambda: run_first(turn, x, y), during=during)
        else:
            started.during = during
            result, other = run_first(turn, x, y), started.result
        return result + other / 2

    def expect(turn, x, y):
        return expect_first(turn, x, y) + expect_other(turn, y, y) / 2

    return run, expect


@operation(SAME)
def same_in_flight(c):
    return in_flight(c, SAME)


@operation(DIFFERENT)
def different_in_flight(c):
    return in_flight(c, {**SAME, **DIFFERENT, "sine": sine})


@operation(DIFFERENT)
def relay(c):
    """In each turn of a loop, the request of the turn before is waited for."""
    size, trips = c.group.size, c.choose.randint(1, 3)

    def run(turn, x, y):
        def start(x):
            source, dest = (c.group.rank() - 1) % size, (c.group.rank() + 1) % size
            return mpi.isendrecv(x, x, source, dest, comm=c.group.comm)

        def step(request, _):
            received = mpi.wait(request)
            return start(jnp.sin(received)), received

        request, received = lax.scan(step, start(x), length=trips)
        return mpi.wait(request) + received.mean(0) + y

    def expect(turn, x, y):
        total = 0
        for _ in range(trips):
            x = np.roll(x, 1, 0)
            total, x = total + x, np.sin(x)
        return np.roll(x, 1, 0) + total / trips + y

    return run, expect


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


#: Those that call one operation of mpi4jax, which has a nonblocking form.
NONBLOCKING = [
    *["allreduce", "allreduce_max", "allreduce_prod", "bcast", "allgather", "scan"],
    *["exscan", "reduce", "gather", "scatter", "alltoall", "reduce_scatter", "shift"],
    *["permute", "exchange", "barrier"],
]
#: Which start an operation that something else is done before the wait for.
IN_FLIGHT = ["same_in_flight", "different_in_flight", "relay"]
ALL = {**SAME, **DIFFERENT, **CONSTANT}
#: JAX's, which refuse an operand that is the same on all members (`check_vma`).
OF_VARYING = ["all_gather", "all_to_all", "ppermute", "psum_scatter", "pmax", "psum"]
