"""Calls that exchange messages, fused with the copies around them: nothing may change.

A seed makes a random program of copies and exchanges, which runs as it is, with nothing
fused, and with copies by XLA. More of them, here the seeds 100 to 599:

    TEST_SEEDS=100:600 mpiexec -n 3 python -P -m pytest \
        --rootdir tests/mpi tests/mpi/features/test_fused_copies.py
"""

import itertools
import json
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4jax._internal.blocks import copies
from mpi4jax._internal.blocks.copies import Copy, CopyList, Rows, View
from mpi4py import MPI
from sample import seeds

from mpi4jax._internal.mpi import handles
from mpi4jax._internal.operations import _lowering
from mpi4jax._internal.operations._messages import Messages
from mpi4jax._internal.operations.exchange import Exchange

pytestmark = pytest.mark.usefixtures("enable_x64")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()

SEEDS = seeds(24)


class Program:
    """Copies and exchanges, in a random order and between random parts of arrays.

    All processes make the same one, in which each sends to the next one.
    """

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        shapes = [(12,), (4, 5), (3, 2, 4)]
        self.shapes = [shapes[self.integer(3)] for _ in range(1 + self.integer(3))]
        self.table = []
        self.steps = [self.step() for _ in range(1 + self.integer(3))]
        #: Of each value that the program has had, whether it is a result.
        self.is_result = self.random.random(1000) < self.random.choice([0.1, 0.5])

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
        sizes = None if source is None else source.sizes
        array = self.integer(len(self.shapes))
        shape = self.shapes[array]
        if sizes is None:
            ranges = [self.range(size) for size in shape]
        elif len(sizes) != len(shape) or any(np.greater(sizes, shape)):
            return None
        else:
            starts = [self.integer(1 + end) for end in np.subtract(shape, sizes)]
            ranges = [range(n, n + size) for n, size in zip(starts, sizes, strict=True)]
        view = View(array, shape, 0, tuple(ranges))
        if self.integer(3) or (source and source.rows):  # a copy has one list
            return view
        # Listed rows along an axis, one of them perhaps beyond the end.
        axis = self.integer(len(shape))
        rows = self.random.permutation(shape[axis] + 1)[: len(ranges[axis])]
        view = view.along(axis, range(len(rows)))
        self.table.extend(rows.tolist())
        return view._replace(rows=Rows(axis, len(self.table) - len(rows)))

    def elements(self, view):
        """The elements of an array that a view has."""
        indices = np.arange(math.prod(view.shape)).reshape(view.shape)
        part = [np.arange(r.start, r.stop) for r in view.ranges]
        if view.rows is not None:
            axis, start = view.rows
            rows = self.table[start : start + len(part[axis])]
            part[axis] = np.array([row for row in rows if row < view.shape[axis]], int)
        return {(view.array, int(n)) for n in indices[np.ix_(*part)].ravel()}

    def stage(self, sources):
        """Independent copies to parts of the arrays."""
        stage, read, written = [], set(), set()
        for source, from_array in sources:
            result = self.view(source)
            if result is None:
                continue
            read_here = self.elements(source) if from_array else set()
            written_here = self.elements(result)
            is_free = written.isdisjoint(read_here | written_here)
            if is_free and written_here.isdisjoint(read | read_here):
                stage.append(Copy(source, result))
                read |= read_here
                written |= written_here
        return tuple(stage)

    def step(self):
        """The functions that make messages, and that take them."""
        types, packed, parts = [], [], []
        for message in range(1 + self.integer(3)):
            size = 0
            for _ in range(1 + self.integer(2)):
                view = self.view()
                ranges = tuple(map(range, view.sizes))
                part = View(len(self.shapes) + message, tuple(view.sizes), size, ranges)
                packed.append(Copy(view, part))
                parts.append(part)
                size += view.size
            types.append(jax.core.ShapedArray((size,), np.dtype(float)))
        stages = [self.stage([(part, False) for part in parts])]
        if self.integer(2):
            stages.append(self.stage([(self.view(), True) for _ in range(2)]))
        packing = CopyList((tuple(packed),), appended=tuple(types))
        return packing, CopyList(tuple(stages), dropped=tuple(types)), self.integer(3)

    def __call__(self, *arrays):
        values, arrays = list(arrays), list(arrays)
        table = [jnp.asarray(self.table or [0], jnp.int32)]
        communicator = handles.communicator("test", COMM)
        for packing, unpacking, between in self.steps:
            packed = packing.apply(arrays, table)
            messages = packed[len(arrays) :]
            count = len(messages)
            operation = Exchange(
                communicator,
                Messages(((RANK + 1) % SIZE,) * count, (0,) * count, (1,) * count),
                Messages(((RANK - 1) % SIZE,) * count, (0,) * count, (1,) * count),
            )
            buffers = [jnp.zeros_like(x) for x in messages]
            arrived = operation.bind(*messages, *buffers)
            values += [*messages, *arrived]
            arrays = packed[: len(arrays)]
            if between == 0:  # an operation between the exchange and the copies
                arrays[0] = arrays[0] + arrived[0].sum()
            if between == 1:  # one that uses the old values
                values.append(arrays[0] * 2)
            arrays = unpacking.apply([*arrays, *arrived], table)
            values += arrays
        chosen = [x for n, x in enumerate(values) if self.is_result[n]]
        return arrays, chosen

    def arguments(self):
        random = np.random.default_rng(RANK)
        return [jnp.asarray(random.normal(size=shape)) for shape in self.shapes]


def handlers(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return re.findall(r"@mpi_(\w+)_ffi", text)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed, monkeypatch):
    program = Program(seed)
    arguments = program.arguments()

    def in_a_loop(*arrays):
        return jax.lax.fori_loop(0, 2, lambda _, x: program(*x)[0], list(arrays))

    def gradients(*arrays):
        results, pull = jax.vjp(program, *arrays)
        return pull(jax.tree.map(jnp.cos, results))

    functions = (program, in_a_loop, gradients)
    fused = [jax.jit(lambda *x, f=f: f(*x))(*arguments) for f in functions]
    names = handlers(program, *arguments)
    monkeypatch.setattr(_lowering, "fuse_copies", lambda _, calls: calls)
    assert len(names) < len(handlers(lambda *x: program(*x), *arguments))
    one_by_one = [jax.jit(lambda *x, f=f: f(*x))(*arguments) for f in functions]
    jax.tree.map(np.testing.assert_array_equal, fused, one_by_one)
    monkeypatch.setattr(copies, "runs_in_core", lambda _, is_transposed: False)
    by_xla = jax.jit(lambda *x: gradients(*x))(*arguments)
    for actual, expected in zip(fused[-1], by_xla, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def exchange(send, receive, *, returns_message=False):
    """Send a range of an array, receive into another one, and check the values.

    Returns:
        The text of the program.

    """
    size = len(send)
    message = View(1, (size,), 0, (range(size),))
    types = (jax.core.ShapedArray((size,), np.dtype(float)),)
    source, result = (View(0, (10,), 0, (indices,)) for indices in (send, receive))
    packing = CopyList(((Copy(source, message),),), appended=types)
    unpacking = CopyList(((Copy(message, result),),), dropped=types)
    previous = (RANK - 1) % SIZE
    to_next = Messages.single((RANK + 1) % SIZE, 0)
    operation = Exchange(
        handles.communicator("test", COMM), to_next, Messages.single(previous, 0)
    )

    def function(x):
        x, sent = packing.apply([x])
        received = operation.bind(sent, jnp.zeros_like(sent))
        results = unpacking.apply([x, *received])
        return [*results, sent] if returns_message else results

    x = np.arange(10.0) + 100 * RANK
    y, *sent = jax.jit(function)(jnp.asarray(x))
    expected = x.copy()
    expected[receive] = np.arange(10.0)[send] + 100 * previous
    np.testing.assert_array_equal(y, expected)
    for array in sent:
        np.testing.assert_array_equal(array, x[send])
    text = jax.jit(function).lower(x).as_text()
    _, *numbers = json.loads(re.findall(r"with_copies = dense<(.*?)>", text)[0])
    rest = iter(numbers)
    lists = [list(itertools.islice(rest, length)) for length in rest]
    return FusedCall(*(lists[n] for n in (0, 1, 2, 5)))


class FusedCall(NamedTuple):
    """The lists of a fused call: the parts of arrays that are messages, and the copies."""

    sent: list[int]
    received: list[int]
    before: list[int]
    after: list[int]


def test_contiguous_messages_are_sent_and_received_in_place():
    call = exchange(range(1, 4), range(6, 9))
    assert call == FusedCall(sent=[1, 1, 3], received=[1, 6, 3], before=[], after=[])


def test_what_is_overwritten_meanwhile_is_not_sent_in_place():
    call = exchange(range(1, 4), range(3, 6))
    assert call.before
    assert not call.after


def test_messages_with_other_uses_are_arrays():
    assert exchange(range(1, 4), range(6, 9), returns_message=True).before
