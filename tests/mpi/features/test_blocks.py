"""Exchanges of blocks, against NumPy and in all the ways in which they can be made.

A seed makes a random description, the same one on all processes, each of which sends to the
next one. More of them, here the seeds 100 to 599:

    TEST_SEEDS=100:600 mpiexec -n 3 python -P -m pytest \
        --rootdir tests/mpi tests/mpi/features/test_blocks.py
"""

import itertools
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from sample import seeds

from mpi4jax import notoken as mpi
from mpi4jax._internal.blocks import copies
from mpi4jax._internal.blocks.copies import Copy, Rows, View
from mpi4jax._internal.blocks.description import Description, Message
from mpi4jax._internal.blocks.exchange import BlockExchange
from mpi4jax._internal.blocks.one_call import OneCall
from mpi4jax._internal.mpi import handles
from mpi4jax._internal.operations._computed import FIRST_COMPUTED

pytestmark = pytest.mark.usefixtures("enable_x64")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE

SEEDS = seeds(24)


def types_of(shapes, dtypes):
    return tuple(map(jax.core.ShapedArray, shapes, map(np.dtype, dtypes)))


class InPlace:
    """A random exchange whose results are its arrays, in the view of any rank."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.shapes = [
            [(12,), (4, 5), (3, 2, 4)][self.integer(3)] for _ in range(1 + self.integer(3))
        ]
        mixed = [float, float, np.float32] if self.integer(4) == 0 else [float]
        self.dtypes = [mixed[self.integer(len(mixed))] for _ in self.shapes]
        self.table = []
        #: Whether the program computes ranks, and the last rank sends to nobody.
        self.is_computed = self.integer(3) == 0
        written = set()
        self.messages = []
        for _ in range(1 + self.integer(3)):
            blocks = [self.block(written) for _ in range(1 + self.integer(2))]
            self.messages.append([pair for pair in blocks if pair is not None])
        self.local = [self.stage() for _ in range(self.integer(3))]

    def integer(self, end):
        return int(self.random.integers(end))

    def range(self, size):
        """Some of the indices, which is often all of them."""
        if self.integer(3) == 0:
            return range(size)
        start = self.integer(size)
        return range(start, start + 1 + self.integer(size - start))

    def view(self, source=None):
        """A part of an array: any, or one to which a part can be copied."""
        array = self.integer(len(self.shapes))
        shape = self.shapes[array]
        if source is None:
            ranges = [self.range(size) for size in shape]
        elif (
            self.dtypes[array] != self.dtypes[source.array]
            or len(source.sizes) != len(shape)
            or any(np.greater(source.sizes, shape))
        ):
            return None
        else:
            starts = [self.integer(1 + end) for end in np.subtract(shape, source.sizes)]
            ranges = [
                range(n, n + size) for n, size in zip(starts, source.sizes, strict=True)
            ]
        view = View(array, shape, 0, tuple(ranges))
        if self.integer(3) or (source and source.rows):  # a copy has one list
            return view
        # Listed rows along an axis, one of them perhaps beyond the end.
        axis = self.integer(len(shape))
        rows = self.random.permutation(shape[axis] + 1)[: len(ranges[axis])]
        view = view.along(axis, range(len(rows)))
        self.table.extend(rows.tolist())
        return view._replace(rows=Rows(axis, len(self.table) - len(rows)))

    def block(self, written):
        """A block that is sent, and where it is received: not where others are."""
        source = self.view()
        result = self.view(source)
        if result is None or not written.isdisjoint(self.elements(result)):
            return None
        written |= self.elements(result)
        return source, result

    def stage(self):
        """Independent copies between parts of the arrays."""
        stage, read, written = [], set(), set()
        for _ in range(2):
            source = self.view()
            result = self.view(source)
            if result is None:
                continue
            read_here, written_here = self.elements(source), self.elements(result)
            is_free = written.isdisjoint(read_here | written_here)
            if is_free and written_here.isdisjoint(read | read_here):
                stage.append(Copy(source, result))
                read |= read_here
                written |= written_here
        return tuple(stage)

    def index(self, view):
        """For NumPy, the elements of an array that a view has, and which ones are there."""
        indices = [np.arange(r.start, r.stop) for r in view.ranges]
        is_there = np.ones(view.sizes, bool)
        if view.rows is not None:
            axis, start = view.rows
            rows = np.array(self.table[start : start + len(indices[axis])])
            indices[axis] = np.minimum(rows, view.shape[axis] - 1)
            shape = np.ones(len(view.shape), int)
            shape[axis] = -1
            is_there &= (rows < view.shape[axis]).reshape(shape)
        return np.ix_(*indices), is_there

    def elements(self, view):
        numbers = np.arange(math.prod(view.shape)).reshape(view.shape)
        at, is_there = self.index(view)
        return {(view.array, int(n)) for n in numbers[at][is_there]}

    def read(self, arrays, view):
        at, is_there = self.index(view)
        return np.where(is_there, arrays[view.array][at], 0)

    def write(self, arrays, view, part):
        at, is_there = self.index(view)
        flat = np.arange(arrays[view.array].size).reshape(view.shape)[at][is_there]
        arrays[view.array].reshape(-1)[flat] = part[is_there]

    def description(self):
        messages = [list(zip(*pairs, strict=True)) for pairs in self.messages if pairs]
        # The ranks that the program computes are those to send to, and to receive from.
        dest, source = (
            (FIRST_COMPUTED, FIRST_COMPUTED + 1) if self.is_computed else (NEXT, PREVIOUS)
        )
        return Description(
            types_of(self.shapes, self.dtypes),
            sent=tuple(
                Message(dest, tag, sent, self.is_computed)
                for tag, (sent, _) in enumerate(messages)
            ),
            received=tuple(
                Message(source, tag, received, self.is_computed)
                for tag, (_, received) in enumerate(messages)
            ),
            local=tuple(self.local),
        )

    def arrays_of(self, rank):
        random = np.random.default_rng(rank)
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return [random.normal(size=shape).astype(dtype) for shape, dtype in pairs]

    def expected(self, arrays_of):
        """The results of this process, from the arrays of any rank."""
        arrays = [x.copy() for x in arrays_of(RANK)]
        if not (self.is_computed and RANK == 0):
            previous = arrays_of(PREVIOUS)
            for source, result in itertools.chain(*self.messages):
                self.write(arrays, result, self.read(previous, source))
        for stage in self.local:
            parts = [self.read(arrays, source) for source, _ in stage]
            for (_, result), part in zip(stage, parts, strict=True):
                self.write(arrays, result, part)
        return arrays

    def others(self):
        """The table, and the computed ranks. The ring is open then."""
        dest = MPI.PROC_NULL if RANK == SIZE - 1 else NEXT
        source = MPI.PROC_NULL if RANK == 0 else PREVIOUS
        table = jnp.asarray(self.table or [0], jnp.int32)
        return [table], [jnp.asarray([dest, source], jnp.int32)]


class NewArrays(InPlace):
    """A random permutation of the rows of arrays, some of which go to the next process."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.table, self.is_computed = [], False
        count = 1 + self.integer(3)
        self.shapes = [(2 + self.integer(3), 5)] * count
        self.dtypes = [float] * count
        rows = [(n, row) for n in range(count) for row in range(self.shapes[0][0])]
        pairs = [
            (self.row(*source), self.row(*rows[n]))
            for source, n in zip(rows, self.random.permutation(len(rows)), strict=True)
        ]
        ends = sorted(self.integer(len(pairs) + 1) for _ in range(2))
        self.messages = [pairs[: ends[0]], pairs[ends[0] : ends[1]]]
        self.local = [tuple(Copy(*pair) for pair in pairs[ends[1] :])]

    def row(self, array, n):
        shape = self.shapes[array]
        return View(array, shape, 0, (range(n, n + 1), range(shape[1])))

    def description(self):
        made = super().description()
        return Description(made.arrays, made.sent, made.received, made.local, made.arrays)

    def expected(self, arrays_of):
        results = [np.full_like(x, np.nan) for x in arrays_of(RANK)]
        for source, result in itertools.chain(*self.messages):
            self.write(results, result, self.read(arrays_of(PREVIOUS), source))
        for source, result in itertools.chain(*self.local):
            self.write(results, result, self.read(arrays_of(RANK), source))
        return results


def handlers(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return re.findall(r"@mpi_(\w+)_ffi", text)


def assert_all_equal(actual, expected):
    assert len(actual) == len(expected)
    jax.tree.map(np.testing.assert_array_equal, list(actual), list(expected))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [InPlace, NewArrays])
def test_random_exchanges(kind, seed, monkeypatch):
    program = kind(seed)
    operation = BlockExchange(handles.communicator("test", COMM), program.description())
    table, ranks = program.others()
    arrays = list(map(jnp.asarray, program.arrays_of(RANK)))

    def exchange(*arrays):
        return operation.call(arrays, table, ranks)

    def overlapped(*arrays):
        results, total = mpi.overlap(
            lambda: exchange(*arrays), during=lambda: sum(x.sum() for x in arrays)
        )
        return [*results, total]

    def gradients(*arrays):
        _, pull = jax.vjp(exchange, *arrays)
        return pull([jnp.cos(x) for x in arrays])

    expected = program.expected(program.arrays_of)
    assert_all_equal(jax.jit(exchange)(*arrays), expected)
    is_one_call = len(set(program.dtypes)) == 1 and any(program.messages)
    # Of one process, a program leaves out messages whose ranks are known.
    is_one_call &= program.is_computed or COMM.Get_size() > 1
    if is_one_call and jax.default_backend() == "cpu":
        names = handlers(exchange, *arrays)
        assert names == ["exchange_computed" if program.is_computed else "exchange"]
    # A batch is one more axis, and values that follow the members'.
    batch = [jnp.stack([x, 2 * x]) for x in arrays]
    assert_all_equal(
        jax.jit(jax.vmap(exchange))(*batch), [np.stack([x, 2 * x]) for x in expected]
    )
    assert_all_equal(jax.jit(overlapped)(*arrays)[:-1], expected)
    assert_all_equal(overlapped(*arrays)[:-1], expected)
    tangents = [jnp.sin(x) for x in arrays]
    _, pushed = jax.jit(lambda x, t: jax.jvp(exchange, tuple(x), tuple(t)))(
        arrays, tangents
    )
    pulled = jax.jit(gradients)(*arrays)
    # The transpose: the sums over all processes are equal.
    sums = [
        sum(float((a * b).sum()) for a, b in zip(*pair, strict=True))
        for pair in ((pushed, [jnp.cos(x) for x in arrays]), (tangents, pulled))
    ]
    np.testing.assert_allclose(*COMM.allreduce(np.array(sums)), rtol=1e-6)

    # By the core's copies and a plain exchange, and by XLA's.
    for patch in (
        lambda: monkeypatch.setattr(OneCall, "is_for_core", False),
        lambda: monkeypatch.setattr(copies, "runs_in_core", lambda *_, **__: False),
    ):
        patch()
        assert_all_equal(jax.jit(lambda *x: exchange(*x))(*arrays), expected)
        others = jax.jit(lambda *x: gradients(*x))(*arrays)
        for one, other in zip(pulled, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-12)


def exchange(send, receive):
    """Send a range of an array, receive into another one, and check the values.

    Returns:
        The lists of the call: parts of arrays that are sent and received, and the copies
        before and after.

    """
    source, result = (View(0, (10,), 0, (indices,)) for indices in (send, receive))
    operation = BlockExchange(
        handles.communicator("test", COMM),
        Description(
            types_of([(10,)], [float]),
            sent=(Message(NEXT, 0, (source,)),),
            received=(Message(PREVIOUS, 0, (result,)),),
        ),
    )
    x = np.arange(10.0) + 100 * RANK
    expected = x.copy()
    expected[receive] = np.arange(10.0)[send] + 100 * PREVIOUS
    function = jax.jit(lambda x: operation.call([x]))
    np.testing.assert_array_equal(*function(x), expected)
    text = function.lower(x).as_text()
    _, *numbers = json.loads(re.findall(r"with_copies = dense<(.*?)>", text)[0])
    rest = iter(numbers)
    lists = [list(itertools.islice(rest, length)) for length in rest]
    return [lists[n] for n in (0, 1, 2, 5)]


@pytest.mark.on_cpus
def test_contiguous_messages_are_sent_and_received_in_place():
    assert exchange(range(1, 4), range(6, 9)) == [[1, 1, 3], [1, 6, 3], [], []]


@pytest.mark.on_cpus
def test_what_is_overwritten_meanwhile_is_not_sent_in_place():
    _, _, before, after = exchange(range(1, 4), range(3, 6))
    assert before
    assert not after
