"""Several arrays in one call, on the device as on the host."""

import driver
import frames
import numpy as np
import pytest
from calls import Call, any_bytes, communicator
from driver import DeviceArray, idle

from mpi4jax import _core

EXCHANGE = Call("exchange", {}, None)
#: The types and lengths of the arrays to the right, and of those to the left.
ARRAYS = [
    [("float64", 0), ("int8", 5), ("float32", 9)],
    [("complex128", 3), ("int16", 300)],
]


def attributes(c):
    """Messages to the right with even tags, and to the left with odd ones."""
    left, right = (c.rank - 1) % c.size, (c.rank + 1) % c.size
    counts = len(ARRAYS[0]), len(ARRAYS[1])
    tags = [2 * n for n in range(counts[0])] + [2 * n + 1 for n in range(counts[1])]
    return {
        "comm_number": c.comm_number,
        "dests": [right] * counts[0] + [left] * counts[1],
        "sendtags": tags,
        "sources": [left] * counts[0] + [right] * counts[1],
        "recvtags": tags,
    }


def arrays_of(rank, size):
    """The arrays that a rank sends, and those that it receives."""
    left, right = (rank - 1) % size, (rank + 1) % size

    def of(sender, direction):
        seed = 2 * sender + direction
        return [any_bytes(dtype, seed, count) for dtype, count in ARRAYS[direction]]

    return of(rank, 0) + of(rank, 1), of(left, 0) + of(right, 1)


@pytest.mark.parametrize("chunk", [0, 16, 48, 4096])
def test_on_the_host(chunk, expect):
    c = communicator(chunk)
    sent, expected = arrays_of(c.rank, c.size)
    results = [np.zeros_like(x) for x in expected]
    frames.call(frames.ON_HOST["exchange"], sent, results, attributes(c))
    for actual, wanted in zip(results, expected, strict=True):
        expect(actual.tobytes(), wanted.tobytes(), EXCHANGE)


@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
@pytest.mark.parametrize("chunk", [0, 16, 48, 4096])
def test_on_the_device(chunk, direct, stream, expect):
    _core.set_direct(direct)
    c = communicator(chunk)
    sent, expected = arrays_of(c.rank, c.size)
    for _ in range(2):
        operands = [DeviceArray(x.dtype, x.shape, is_open=direct) for x in sent]
        results = [DeviceArray(x.dtype, x.shape, is_open=direct) for x in expected]
        for array, x in zip(operands, sent, strict=True):
            array.write_later(x, stream, 100)
        handler = frames.ON_DEVICE["exchange"]
        frames.call(handler, operands, results, attributes(c), stream.handle)
        used = [array.copy_later(stream) for array in results]
        idle()
        for actual, wanted in zip(used, expected, strict=True):
            expect(actual.read().tobytes(), wanted.tobytes(), EXCHANGE, chunk=chunk)
        for array, x in zip(operands, sent, strict=True):
            expect(array.read().tobytes(), x.tobytes(), EXCHANGE, array="operand")


@pytest.mark.parametrize(
    "function", ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuEventSynchronize"]
)
def test_failures_of_the_driver(function, stream):
    """An error of each copy is an error of the call, and no memory is lost."""
    c = communicator(0, frames.MPI.COMM_SELF)
    sent, expected = arrays_of(0, 1)
    for skip in (0, 2):
        operands = [DeviceArray(x.dtype, x.shape) for x in sent]
        results = [DeviceArray(x.dtype, x.shape) for x in expected]
        driver.fail(function, 719, skip)
        with pytest.raises(frames.XlaError):
            frames.call(
                frames.ON_DEVICE["exchange"],
                operands,
                results,
                attributes(c),
                stream.handle,
            )
        idle()
        driver.fail(function, 0)
