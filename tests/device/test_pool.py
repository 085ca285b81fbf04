"""The page-locked memory: kept for the next call, limited, and freed."""

import threading
import time

import driver
import numpy as np
import pytest
from calls import (
    alone,
    any_bytes,
    calls,
    on_device,
    on_host,
    recv,
    sendrecv,
    start_on_device,
)
from driver import count, live
from mpi4py import MPI

from mpi4jax import _core

#: The smallest block.
BLOCK = 64 << 10


def allreduce(nbytes):
    """A call on this rank alone, with two arrays of `nbytes` bytes."""
    (call,) = calls("allreduce", alone(), "int8", nbytes)
    return call


def check(call, stream, **options):
    assert on_device(call, alone(), stream, **options) == on_host(call, alone())


@pytest.mark.parametrize("chunk", [0, 16])
def test_blocks_are_used_again(chunk, stream):
    """Those of one call may be busy when the next one comes, but no longer than that."""
    call, c = allreduce(40), alone(chunk)
    expected = on_host(call, c)
    pending = [start_on_device(call, c, stream, delay=0) for _ in range(200)]
    assert count("cuMemHostAlloc") <= 4
    assert count("cuMemFreeHost", "cuEventDestroy") == 0
    assert {result.get() for result in pending} == {expected}


def test_a_busy_block_is_not_used(stream):
    """If it were, earlier results would be overwritten before they are copied up."""
    busy = driver.DeviceArray("int32", (1,))
    busy.write_later(np.zeros(1, "int32"), stream, 50_000)
    received = [receive(value, stream) for value in range(8)]
    assert [result.get()[0] for result in received] == list(range(8))


def receive(value, stream):
    """Receive 10 bytes that are this number."""
    data = np.full(10, value, np.uint8)
    request = MPI.COMM_SELF.Isend([data, MPI.BYTE], dest=0, tag=7)
    pending = start_on_device(recv("uint8", (10,), 0), alone(), stream)
    request.Wait()
    return pending


def test_results_that_nobody_waits_for_stay_within_the_limit(stream):
    """A host that runs ahead of its stream gets no further than the memory goes."""
    limit = 8 * BLOCK
    _core.set_staging_limit(limit)
    received = [receive(value % 256, stream) for value in range(200)]
    assert live("peak_host_bytes") <= limit
    assert [result.get()[0] for result in received] == [value % 256 for value in range(200)]


def test_calls_of_all_sizes_stay_within_the_limit(stream):
    limit = 2 << 20
    _core.set_staging_limit(limit)
    generator = np.random.default_rng(0)
    for nbytes in generator.integers(1, 1 << 20, 60):
        check(allreduce(int(nbytes)), stream, in_place=bool(nbytes % 2), delay=0)
    assert live("peak_host_bytes") <= limit


def test_a_small_call_after_a_large_one(stream):
    """It does not keep the large block while it takes another one, which has no room."""
    _core.set_staging_limit(4 * BLOCK)
    check(allreduce(4 * BLOCK), stream, in_place=True)
    check(allreduce(1), stream)
    assert live("peak_host_bytes") <= 4 * BLOCK


@pytest.mark.parametrize("limit", [0, BLOCK, 3 * BLOCK])
def test_a_call_that_needs_more_than_the_limit(limit, stream):
    """It gets the memory it needs, which is freed after it."""
    _core.set_staging_limit(limit)
    for nbytes in (3 * BLOCK, 40 * BLOCK + 1):
        check(allreduce(nbytes), stream)
        check(allreduce(1), stream, in_place=True)
        assert live("host_bytes") <= max(limit, BLOCK)
    start_on_device(allreduce(3 * BLOCK), alone(), stream)
    _core.free_staging()
    assert live("host_bytes") == live("events") == 0


@pytest.mark.skipif(driver.PLATFORM != "cuda", reason="calls a function of CUDA's")
def test_a_stream_that_waits_for_another_call(stream):
    """Fails if a call that waits for a stream keeps others from the memory until then."""
    _core.set_staging_limit(BLOCK)
    gate = threading.Event()
    was_opened = []
    stream.call(lambda: was_opened.append(gate.wait(60)))
    first = receive(1, stream)
    waits = count("cuEventSynchronize")
    second = []

    def receive_another():
        driver.set_context(driver.context(0))
        second.append(receive(2, stream))

    thread = threading.Thread(target=receive_another)
    thread.start()
    while count("cuEventSynchronize") == waits:
        time.sleep(0.01)
    third = start_on_device(allreduce(2 * BLOCK), alone(), driver.Stream(), delay=0)
    gate.set()
    thread.join()
    assert [pending.get()[0] for pending in (first, *second)] == [1, 2]
    assert third.get() == on_host(third.call, alone())
    assert was_opened == [True]


def test_a_lower_limit(stream):
    check(allreduce(20 * BLOCK), stream)
    _core.set_staging_limit(4 * BLOCK)
    check(allreduce(1), stream)
    assert live("host_bytes") <= 4 * BLOCK


def test_free_staging(stream):
    """It waits for the copies that a stream is still to make."""
    call = allreduce(3 * BLOCK)
    pending = start_on_device(call, alone(), stream)
    assert live("host_blocks") == 2
    _core.free_staging()
    assert [live(name) for name in ("host_bytes", "host_blocks", "events")] == [0, 0, 0]
    assert pending.get() == on_host(call, alone())
    check(call, stream)


@pytest.mark.parametrize("index", [None, 1])
def test_free_staging_in_another_context(index, stream):
    """Memory is freed in its own context, and the thread keeps the one it has."""
    busy = driver.DeviceArray("int32", (1,))
    busy.write_later(np.zeros(1, "int32"), stream, 50_000)
    pending = receive(3, stream)
    context = None if index is None else driver.context(index)
    contexts = []

    def free():
        driver.set_context(context)
        _core.free_staging()
        contexts.append(driver.current_context())

    in_thread(free)
    assert contexts == [context]
    assert live("host_bytes") == live("events") == 0
    assert pending.get() == bytes([3] * 10)


def test_contexts_do_not_share_memory(stream):
    """An event of one context can't be recorded on a stream of another."""
    call = allreduce(10)
    expected = on_host(call, alone())
    check(call, stream)

    def in_context_1():
        driver.set_context(driver.context(1))
        other = driver.Stream(1)
        assert on_device(call, alone(), other) == expected

    in_thread(in_context_1)
    assert live("host_blocks") == 4
    # Where there is no room, the other's blocks are freed, and this one stays current.
    _core.set_staging_limit(4 * BLOCK)
    check(allreduce(2 * BLOCK), stream)
    assert driver.current_context() == driver.context(0)
    assert live("host_bytes") <= 4 * BLOCK


def in_thread(function):
    """Run a function in a thread, with its exceptions."""
    outcome = []

    def run():
        try:
            function()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in outcome:
        raise error


def test_new_memory_holds_no_old_data(stream):
    """Of what was never received, nothing is copied up but what was in the operand."""
    check(allreduce(100), stream)
    data = any_bytes("int8", 3, 100)
    call = sendrecv(alone(), data, data.shape)
    request = MPI.COMM_SELF.Isend([data[:10], MPI.BYTE], dest=0, tag=6)
    call.attributes["recvtag"] = 6
    received = MPI.COMM_SELF.Irecv([np.empty(100, "int8"), MPI.BYTE], source=0, tag=5)
    assert on_device(call, alone(), stream, in_place=True) == data.tobytes()
    MPI.Request.Waitall([request, received])
