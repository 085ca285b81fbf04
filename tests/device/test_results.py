"""Every operation gives on the device what it gives on the host, bit by bit."""

import driver
import frames
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls import (
    DTYPES,
    IN_PIECES,
    OF_ONE_ARRAY,
    Call,
    alone,
    any_bytes,
    calls,
    cancel,
    communicator,
    on_device,
    on_host,
    sendrecv,
)
from compiled import calls_in
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._testing.cases import OPERATIONS

#: The size of a piece, with arrays shorter, longer, with a rest and without one.
CHUNKS = (0, 16, 48, 4096, 1 << 20)


def counts_for(chunk, dtype):
    """Numbers of elements for messages in pieces of `chunk` bytes."""
    elements = chunk // np.dtype(dtype).itemsize
    if not 0 < elements <= 4096:
        return [0, 1, 300]
    return sorted({0, 1, elements, 3 * elements + 2})


def check(expect, name, dtype, count, chunk, stream, is_open=False):
    """Compare the device with the host, in pieces and not, in place and not.

    And what the host gives with what is known of it.
    """
    whole, pieces = communicator(), communicator(chunk)
    for call in calls(name, whole, dtype, count):
        expected = on_host(call, whole)
        if call.is_defined:
            expect(expected, call.expected, call, on="host")
        if chunk and name in IN_PIECES:
            actual = on_host(call, pieces, call.in_place)
            if call.is_defined:
                expect(actual, expected, call, on="host", chunk=chunk)
        for in_place in call.ways:
            actual = on_device(call, pieces, stream, in_place=in_place, is_open=is_open)
            if call.is_defined:
                expect(actual, expected, call, chunk=chunk, in_place=in_place)


def test_every_handler_has_a_call():
    c = communicator()
    called = {call.name for name in OF_ONE_ARRAY for call in calls(name, c, "int8", 1)}
    called.add("exchange")  # in test_exchange.py
    called.add("shared")  # below
    for name in ("allgatherv", "alltoallv"):  # in test_ragged.py
        called |= {f"{name}_counts", f"{name}_rows"}
    called |= {*_core.NONBLOCKING, "in_order", "wait"}  # in test_nonblocking.py
    called.add("order")  # It does nothing.
    for case in OPERATIONS.values():
        if case.least_size > c.size:
            called.update(case.operations)
    called |= {f"{name}_computed" for name in called - {"in_order", "order"}}
    assert called == set(frames.ON_DEVICE)
    # Elsewhere, XLA does that by itself.
    of_host = {"concatenate", "copy", "copy_transposed", "split"}
    assert set(frames.ON_HOST) - called == of_host


def test_shared_values_are_compared(stream):
    """Two fingerprints of each leaf, on the device."""
    c = communicator()
    names = list(b"w['a']\0w['b']\0")
    attributes = {"comm_number": c.comm_number, "names": names}

    def compare(fingerprints):
        operand = driver.DeviceArray("int32", (2, 2))
        operand.write_later(np.asarray(fingerprints, np.int32), stream, 0)
        shared = frames.ON_DEVICE["shared"]
        frames.call(shared, [operand], [], attributes, stream.handle)

    compare([[1, 2], [3, 4]])
    if c.size > 1:
        with pytest.raises(frames.XlaError) as raised:
            compare([[1, 2], [3, c.rank]])
        assert "`w['b']` of rank 1 is not that of rank 0" in raised.value.text


@pytest.mark.parametrize("name", ["exscan", "scan"])
def test_scans_from_the_end(name):
    """They are what programs have as the transpose of a scan."""
    x = jnp.ones(4)

    def transposed(y):
        return jax.linear_transpose(OPERATIONS[name].call, x)(y)[0]

    ((there,),) = calls_in(OPERATIONS[name].call, [x])
    ((back,),) = calls_in(transposed, [x])
    c = communicator()
    expected, made = calls(name, c, "float64", 4)
    for call, compiled in ((expected, there), (made, back)):
        assert (compiled.name, compiled.is_used) == (name, call.is_defined)
        # The communicator is another one, and so are the programs.
        others = {key: compiled.attributes[key] for key in ("call_site", "comm_number")}
        assert compiled.attributes == {**call.attributes, **others}


@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_staged(name, stream, expect):
    for dtype in map(np.dtype, DTYPES):
        for chunk in CHUNKS if name in IN_PIECES else (0, 48):
            for count in counts_for(chunk, dtype):
                check(expect, name, dtype, count, chunk, stream)


@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_direct(name, stream, expect):
    _core.set_direct(True)
    for dtype in map(np.dtype, DTYPES):
        for chunk in (0, 48) if name in IN_PIECES else (0,):
            for count in counts_for(chunk, dtype):
                check(expect, name, dtype, count, chunk, stream, is_open=True)


@pytest.mark.parametrize("use_large", [True, False])
@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_more_than_an_int_counts(name, use_large, stream, expect):
    """Reductions in parts, and data types made for the call."""
    cases = [
        (call, on_host(call, communicator()))
        for dtype in ("bfloat16", "float32", "complex128")
        for count in (0, 7, 8, 19)
        for call in calls(name, communicator(), dtype, count)
    ]
    # Rows are counted too, and there are less than 7 of them.
    _core.set_count_limit(7, use_large)
    try:
        for chunk in (0, 48):
            for call, expected in cases:
                actual = on_device(call, communicator(chunk), stream)
                if call.is_defined:
                    expect(actual, expected, call, chunk=chunk)
    finally:
        _core.set_count_limit(2**31 - 1, True)


def test_large(stream, expect):
    """More than the largest power of two that blocks of staging memory have."""
    for chunk in (0, 1 << 20):
        for count in (1 << 20, (1 << 20) + 3):
            check(expect, "allreduce", "float32", count, chunk, stream)
            check(expect, "send and recv", "float32", count, chunk, stream)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("chunk", [0, 16])
def test_empty_operand_where_the_result_is(chunk, where, stream):
    """An empty array takes no memory, so it may have the address of another one."""
    c, data = alone(chunk), any_bytes("int32", 1, 4)
    attributes = sendrecv(c, data, data.shape).attributes
    attributes.update(sendtag=1, recvtag=2)
    incoming = c.comm.Isend([data, MPI.BYTE], dest=0, tag=2)
    end = c.comm.Isend([data[:0], MPI.BYTE], dest=0, tag=2) if chunk else MPI.REQUEST_NULL
    outgoing = c.comm.Irecv([np.empty(1), MPI.BYTE], source=0, tag=1)
    try:
        if where == "host":
            result = np.zeros(4, "int32")
            run = frames.ON_HOST["sendrecv"], [result[:0]], [result]
        else:
            result = driver.DeviceArray("int32", (4,))
            run = frames.ON_DEVICE["sendrecv"], [result.part((0,))], [result]
        frames.call(*run, {**attributes, "comm_number": c.comm_number}, stream.handle)
        driver.idle()
        actual = result if where == "host" else result.read()
        assert actual.tobytes() == data.tobytes()
        assert outgoing.Test()
    finally:
        for request in (incoming, end, outgoing):
            cancel(request)


def test_which_path(stream):
    """Copies, unless MPI says that it takes device memory, or the user does."""
    assert (_core.device(), _core.why_no_device()) == (driver.PLATFORM, None)
    _core.set_direct(None)
    assert _core.is_direct() == (_core.mpi_takes_device_memory() is True)
    for direct in (False, True):
        _core.set_direct(direct)
        assert _core.is_direct() == direct
        driver.reset_counts()
        (call,) = calls("allreduce", communicator(), "float32", 5)
        on_device(call, communicator(), stream, is_open=True)
        assert driver.count("bytes_down") == (0 if direct else 20)


def test_a_call_without_a_stream():
    call = Call("barrier", {"comm_number": communicator().comm_number}, None)
    with pytest.raises(frames.XlaError) as error:
        frames.call(frames.ON_DEVICE["barrier"], [], [], call.attributes)
    assert error.value.code == frames.INTERNAL
    assert error.value.text == "XLA gave no stream to a call on a device"
    MPI.COMM_WORLD.Barrier()
