"""Counts in device memory, and rows of which only the counted ones move."""

import driver
import frames
import numpy as np
import pytest
from calls import Call, any_bytes, communicator
from driver import DeviceArray, idle

from mpi4jax import _core

ROWS, CAPACITY = 20, 30
COLUMNS = 3


def counts_of(rank, size):
    """The rows that a rank sends to each."""
    return np.array([(rank + 2 * receiver) % 4 for receiver in range(size)])


def rows_of(rank):
    return any_bytes("float32", rank, ROWS, COLUMNS)


def received(rank, size):
    """The rows that a rank gets by alltoallv, and how many from each."""
    parts = []
    for sender in range(size):
        counts = counts_of(sender, size)
        first = counts[:rank].sum()
        parts.append(rows_of(sender)[first : first + counts[rank]])
    return np.concatenate(parts), np.array([len(part) for part in parts])


def gathered(size):
    """The rows that all get by allgatherv, and how many from each."""
    parts = [rows_of(sender)[: counts_of(sender, size)[0]] for sender in range(size)]
    return np.concatenate(parts), np.array([len(part) for part in parts])


def on_device(array, stream, direct):
    """An array that is there when the stream comes to it."""
    result = DeviceArray(array.dtype, array.shape, is_open=direct)
    result.write_later(array, stream, 100)
    return result


@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("operation", ["alltoallv", "allgatherv"])
def test_on_the_device(operation, dtype, direct, stream, expect):
    _core.set_direct(direct)
    c = communicator(0)
    sent = counts_of(c.rank, c.size).astype(dtype)
    rows, counts = received(c.rank, c.size)
    if operation == "allgatherv":
        sent = sent[0]
        rows, counts = gathered(c.size)
    call = Call(operation, {"direct": direct}, dtype)
    comm_number = {"comm_number": c.comm_number}
    for _ in range(2):
        x = on_device(rows_of(c.rank), stream, direct)
        own = on_device(np.asarray(sent), stream, direct)
        received_counts = DeviceArray(dtype, (c.size,), is_open=direct)
        frames.call(
            frames.ON_DEVICE[f"{operation}_counts"],
            [own],
            [received_counts],
            {**comm_number, "rows": ROWS, "capacity": CAPACITY},
            stream.handle,
        )
        result = DeviceArray("float32", (CAPACITY, COLUMNS), is_open=direct)
        before = any_bytes("float32", 99, CAPACITY, COLUMNS)
        result.write_later(before, stream, 0)
        operands = (
            [x, own, received_counts] if operation == "alltoallv" else [x, received_counts]
        )
        handler = frames.ON_DEVICE[f"{operation}_rows"]
        frames.call(handler, operands, [result], comm_number, stream.handle)
        used = received_counts.copy_later(stream), result.copy_later(stream)
        idle()
        expect(used[0].read().tobytes(), counts.astype(dtype).tobytes(), call)
        # Nothing behind the rows is written.
        before[: len(rows)] = rows
        expect(used[1].read().tobytes(), before.tobytes(), call)


@pytest.mark.parametrize("function", ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"])
def test_failures_of_the_driver(function, stream):
    """An error of a copy is an error of the call, and no memory is lost."""
    c = communicator(0, frames.MPI.COMM_SELF)
    own, received_counts = DeviceArray("int32", (1,)), DeviceArray("int32", (1,))
    own.write_later(np.ones(1, np.int32), stream, 0)
    attributes = {"comm_number": c.comm_number, "rows": 1, "capacity": 1}
    driver.fail(function, 719, 0)
    with pytest.raises(frames.XlaError):
        frames.call(
            frames.ON_DEVICE["alltoallv_counts"],
            [own],
            [received_counts],
            attributes,
            stream.handle,
        )
    idle()
    driver.fail(function, 0)
