"""Arrays in flight are in host memory, wherever they come from and go to."""

import frames
import numpy as np
import pytest
from calls import Call, any_bytes, communicator, small_numbers
from driver import DeviceArray, idle
from test_exchange import arrays_of, attributes

from mpi4jax import _core
from mpi4jax._internal.arguments.dtypes import DATATYPES, SUM

EXCHANGE = Call("iexchange", {}, None)
FIRST, WAIT = {"may_be_lost": 0}, {"may_be_zero": 0, "started": 0}


def to_come(*expected):
    """The attributes of a call that starts an operation with these results."""
    types = [n for x in expected for n in (DATATYPES[str(x.dtype)][0], x.size)]
    return {**FIRST, "arrays": types}


def of_flight(c, expected):
    """The attributes that start an exchange, and that wait."""
    return (
        {**attributes(c), **to_come(*expected)},
        {"comm_number": c.comm_number, **WAIT},
    )


@pytest.mark.parametrize("chunk", [0, 16, 4096])
def test_messages_on_the_host(chunk, expect):
    c = communicator(chunk)
    sent, expected = arrays_of(c.rank, c.size)
    start, wait = of_flight(c, expected)
    ticket = np.zeros(2, np.float32)
    frames.call(frames.ON_HOST["iexchange"], sent, [ticket], start)
    for x in sent:
        x.reshape(-1).view(np.uint8)[:] = 0  # it is another's now
    results = [np.zeros_like(x) for x in expected]
    frames.call(frames.ON_HOST["wait"], [ticket], results, wait)
    for actual, wanted in zip(results, expected, strict=True):
        expect(actual.tobytes(), wanted.tobytes(), EXCHANGE)


@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
@pytest.mark.parametrize("chunk", [0, 16, 4096])
def test_messages_on_the_device(chunk, direct, stream, expect):
    _core.set_direct(direct)
    c = communicator(chunk)
    sent, expected = arrays_of(c.rank, c.size)
    start, wait = of_flight(c, expected)
    operands = []
    for x in sent:
        operands.append(DeviceArray(x.dtype, x.shape, is_open=direct))
        operands[-1].write_later(x, stream, 200)
    ticket = DeviceArray("float32", (2,), is_open=direct)
    frames.call(frames.ON_DEVICE["iexchange"], operands, [ticket], start, stream.handle)
    for operand, x in zip(operands, sent, strict=True):
        operand.write_later(np.zeros_like(x), stream, 0)
    results = [DeviceArray(x.dtype, x.shape, is_open=direct) for x in expected]
    frames.call(frames.ON_DEVICE["wait"], [ticket], results, wait, stream.handle)
    used = [result.copy_later(stream) for result in results]
    idle()
    for actual, wanted in zip(used, expected, strict=True):
        expect(actual.read().tobytes(), wanted.tobytes(), EXCHANGE)


def collective(name, c):
    """The attributes, the operand and the result of a collective operation."""
    everyone = [small_numbers("float32", rank, c.size, 3) for rank in range(c.size)]
    mine = everyone[c.rank]
    return {
        "iallgather": ({}, mine, np.stack(everyone)),
        "iallreduce": ({"op_number": SUM}, mine, sum(everyone)),
        "ialltoall": ({}, mine, np.stack([x[c.rank] for x in everyone])),
        "ibcast": ({"root": 0}, mine, everyone[0]),
        "hold": ({}, mine, mine),
    }[name]


@pytest.mark.parametrize("where", ["host", "staged", "direct"])
@pytest.mark.parametrize(
    "name", ["iallgather", "iallreduce", "ialltoall", "ibcast", "hold"]
)
def test_collective_operations(name, where, stream, expect):
    _core.set_direct(where == "direct")
    c = communicator()
    more, operand, expected = collective(name, c)
    start = {"comm_number": c.comm_number, **to_come(expected), **more}
    wait = {"comm_number": c.comm_number, **WAIT}
    call = Call(name, start, operand.dtype)
    if where == "host":
        ticket, result = np.zeros(2, np.float32), np.empty_like(expected)
        frames.call(frames.ON_HOST[name], [operand], [ticket], start)
        frames.call(frames.ON_HOST["wait"], [ticket], [result], wait)
        expect(result.tobytes(), expected.tobytes(), call)
        return
    is_open = where == "direct"
    x = DeviceArray(operand.dtype, operand.shape, is_open=is_open)
    x.write_later(operand, stream, 200)
    ticket = DeviceArray("float32", (2,), is_open=is_open)
    result = DeviceArray(expected.dtype, expected.shape, is_open=is_open)
    frames.call(frames.ON_DEVICE[name], [x], [ticket], start, stream.handle)
    frames.call(frames.ON_DEVICE["wait"], [ticket], [result], wait, stream.handle)
    used = result.copy_later(stream)
    idle()
    expect(used.read().tobytes(), expected.tobytes(), call)


def test_arrays_are_handed_through(stream, expect):
    x = DeviceArray("float32", (5,))
    content = any_bytes("float32", 1, 5)
    x.write_later(content, stream, 100)
    frames.call(frames.ON_DEVICE["in_order"], [x], [x], {}, stream.handle)
    used = x.copy_later(stream)
    idle()
    expect(used.read().tobytes(), content.tobytes(), Call("in_order", {}, "float32"))
