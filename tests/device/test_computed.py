"""Calls with numbers that the program has computed, in device memory."""

import frames
import numpy as np
import pytest
from calls import Call, any_bytes, communicator
from driver import DeviceArray, idle
from frames import MPI

from mpi4jax import _core
from mpi4jax._internal.arguments.dtypes import SUM

#: What stands for the first number, and for the second one.
FIRST, SECOND = -(2**63), -(2**63) + 1

SHAPE = (1000,)


def on_device(array, stream, direct):
    """An array that is there when the stream comes to it."""
    result = DeviceArray(array.dtype, array.shape, is_open=direct)
    result.write_later(array, stream, 100)
    return result


def array_of(rank, *shape):
    return any_bytes("float32", rank, *shape)


@pytest.fixture(params=[False, True], ids=["staged", "direct"])
def call(request, stream, expect):
    """Makes a call, and compares its result.

    `sent` are its operands, the last of which are the numbers. With `in_place`, the operand
    with this index is where the result goes.
    """
    direct = request.param
    _core.set_direct(direct)
    c = communicator(0)

    def call(name, sent, attributes, expected, in_place=None):
        *arrays, numbers = sent
        arrays.append(np.array(numbers, np.int32))
        operands = [on_device(array, stream, direct) for array in arrays]
        results = []
        if expected is not None:
            results.append(DeviceArray("float32", expected.shape, is_open=direct))
        if in_place is not None:
            results = [operands[in_place]]
        attributes = {**attributes, "comm_number": c.comm_number}
        handler = frames.ON_DEVICE[f"{name}_computed"]
        frames.call(handler, operands, results, attributes, stream.handle)
        used = [result.copy_later(stream) for result in results]
        idle()
        for result in used:
            label = Call(
                name, {**attributes, "in_place": in_place, "direct": direct}, "float32"
            )
            expect(result.read().tobytes(), expected.tobytes(), label)

    call.rank, call.size = c.rank, c.size
    return call


@pytest.mark.parametrize("in_place", [None, 0, 1])
@pytest.mark.parametrize("is_chain", [False, True], ids=["ring", "chain"])
def test_sendrecv(call, in_place, is_chain):
    """In a chain, the first rank gets the other array: nobody sends to it."""
    dest, source = (call.rank + 1) % call.size, (call.rank - 1) % call.size
    instead = array_of(100 + call.rank, *SHAPE)
    expected = array_of(source, *SHAPE)
    if is_chain and call.rank == 0:
        source, expected = MPI.PROC_NULL, instead
    if is_chain and call.rank == call.size - 1:
        dest = MPI.PROC_NULL
    attributes = {
        "dest": FIRST,
        "recvtag": 1,
        "sendtag": 1,
        "source": SECOND,
        "status_number": -1,
    }
    sent = array_of(call.rank, *SHAPE), instead, (dest, source)
    call("sendrecv", sent, attributes, expected, in_place)


@pytest.mark.parametrize("in_place", [None, 0])
def test_send_and_recv(call, in_place):
    root, tag = call.size - 1, 7
    if call.rank == root:
        for dest in range(root):
            sent = array_of(dest, *SHAPE), (dest, tag)
            call("send", sent, {"dest": FIRST, "tag": SECOND}, None)
    source = MPI.PROC_NULL if call.rank == root else root
    instead = array_of(100, *SHAPE)
    expected = instead if call.rank == root else array_of(call.rank, *SHAPE)
    attributes = {"source": FIRST, "status_number": -1, "tag": SECOND}
    call("recv", (instead, (source, tag)), attributes, expected, in_place)


@pytest.mark.parametrize("in_place", [None, 0])
def test_rooted_operations_with_arrays_on_all_ranks(call, in_place):
    root = call.size - 1
    sent, is_root = array_of(call.rank, *SHAPE), call.rank == root
    call("bcast", (sent, (root,)), {"root": FIRST}, array_of(root, *SHAPE), in_place)
    sent = np.full(SHAPE, call.rank + 1, "float32")
    total = np.full(SHAPE, call.size * (call.size + 1) // 2, "float32")
    attributes = {"op_number": SUM, "root": FIRST}
    call("reduce", (sent, (root,)), attributes, total if is_root else sent, in_place)


def test_blocks_of_root(call):
    root, everyone = call.size - 1, range(call.size)
    own = array_of(call.rank, *SHAPE)
    all_ = np.stack([array_of(rank, *SHAPE) for rank in everyone])
    expected = all_ if call.rank == root else np.zeros_like(all_)
    call("gather", (own, (root,)), {"root": FIRST}, expected)
    # Only root's blocks are right.
    blocks = all_ if call.rank == root else np.ones_like(all_)
    call("scatter", (blocks, (root,)), {"root": FIRST}, own)


def test_the_numbers_are_the_last_operand(stream):
    c = communicator(0, MPI.COMM_SELF)
    x = on_device(array_of(0, *SHAPE), stream, False)
    attributes = {"dest": FIRST, "tag": 0, "comm_number": c.comm_number}
    with pytest.raises(frames.XlaError, match="expected 32-bit integers"):
        frames.call(frames.ON_DEVICE["send_computed"], [x], [], attributes, stream.handle)
    idle()
