"""The copies that a call makes, and how often it waits."""

import driver
import numpy as np
import pytest
from calls import (
    IN_PIECES,
    OF_ONE_ARRAY,
    WHOLE,
    alone,
    any_bytes,
    calls,
    communicator,
    on_device,
    recv,
    sendrecv,
    start_on_device,
)
from mpi4py import MPI

from mpi4jax import _core

COPIES = ("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync")
WAITS = ("cuEventSynchronize", "cuStreamSynchronize")
MEMORY = ("cuMemHostAlloc", "cuMemFreeHost", "cuEventCreate", "cuEventDestroy")

#: A piece of a message, and elements (of 4 bytes) with a rest.
CHUNK, COUNT = 48, 40
PIECES = 4


def counted(call, c, stream, **options):
    driver.reset_counts()
    start_on_device(call, c, stream, **options)
    counts = {name: driver.count(name) for name in (*COPIES, *WAITS)}
    counts |= {name: driver.count(name) for name in ("bytes_down", "bytes_up")}
    driver.idle()
    return counts


def test_the_table_of_calls():
    """The ranks that read and write an array in each operation (MPI-4.1 §6)."""
    c = communicator()
    directions = {
        (name, call.attributes.get("root") == c.rank): (
            call.bytes_read > 0,
            call.bytes_written > 0,
        )
        for name in OF_ONE_ARRAY
        for call in calls(name, c, "float32", COUNT)
        # The third rank has no rows.
        if call.operand is None or call.operand.size
        if call.result is None or 0 not in call.result
    }
    assert directions[("barrier", False)] == (False, False)
    assert directions[("allreduce", False)] == (True, True)
    at_root = dict.fromkeys(["gather", "gatherv", "reduce", "scatter"], (True, True))
    elsewhere = dict.fromkeys(["gather", "gatherv", "reduce"], (True, False))
    at_root["bcast"] = (True, False)
    elsewhere["bcast"] = elsewhere["scatter"] = (False, True)
    # A rank need not be a root, and one that is alone is nothing else.
    for name in at_root:
        assert directions.get((name, True), at_root[name]) == at_root[name]
        assert directions.get((name, False), elsewhere[name]) == elsewhere[name]


@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_bytes(name, stream, expect):
    """No byte is copied that is not needed, and none twice."""
    for chunk in (0, CHUNK):
        c = communicator(chunk)
        for count in (0, COUNT):
            for call in calls(name, c, "float32", count):
                for in_place in call.ways:
                    counts = counted(call, c, stream, in_place=in_place)
                    moved = counts["bytes_down"], counts["bytes_up"]
                    expect(moved, (call.bytes_read, call.bytes_written), call, chunk=chunk)


@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_waits_of_a_whole_message(name, stream, expect):
    """Once for the operand, if there is any, and so never for the copy of the result."""
    c = communicator()
    for count in (0, COUNT):
        for call in calls(name, c, "float32", count):
            for in_place in call.ways:
                counts = counted(call, c, stream, in_place=in_place)
                down, up = call.bytes_read > 0, call.bytes_written > 0
                expect(sum(counts[name] for name in WAITS), down, call)
                expect([counts[name] for name in COPIES], [down, up], call)


@pytest.mark.parametrize("name", IN_PIECES)
def test_waits_of_pieces(name, stream, expect):
    """Once for each piece at most."""
    c = communicator(CHUNK)
    for call in calls(name, c, "float32", COUNT):
        for in_place in call.ways:
            counts = counted(call, c, stream, in_place=in_place)
            down, up = (PIECES if n else 0 for n in (call.bytes_read, call.bytes_written))
            waits = sum(counts[name] for name in WAITS)
            expect(max(waits, down), down, call)
            expect([counts[name] for name in COPIES], [down, up], call)


@pytest.mark.parametrize("name", WHOLE)
def test_no_pieces_of_what_travels_whole(name, stream, expect):
    for call in calls(name, communicator(), "float32", COUNT):
        whole = counted(call, communicator(), stream)
        expect(counted(call, communicator(CHUNK), stream), whole, call)


@pytest.mark.parametrize("chunk", [0, 64])
def test_recv_does_not_wait_for_its_stream(chunk, stream):
    """If it did, the result would be there when it returns."""
    c, data = alone(chunk), any_bytes("int32", 1, 10)
    on_device(recv("int32", (10,), MPI.PROC_NULL), c, stream)  # staging memory
    request = c.comm.Isend([data, MPI.BYTE], dest=0, tag=7)
    busy = driver.DeviceArray("int32", (10,))
    busy.write_later(data, stream, 200_000)
    pending = start_on_device(recv("int32", (10,), 0), c, stream)
    assert set(pending.result.read().tobytes()) == {driver.NEW}
    assert pending.get() == data.tobytes()
    request.Wait()


def test_recv_copies_only_what_came(stream):
    """In pieces, it is known how long a message is."""
    c, data = alone(16), any_bytes("int32", 1, 6)
    sent = [c.comm.Isend([part, MPI.BYTE], dest=0, tag=7) for part in (data[:4], data[4:])]
    counts = counted(recv("int32", (30,), 0), c, stream)
    MPI.Request.Waitall(sent)
    assert (counts["bytes_down"], counts["bytes_up"]) == (0, 24)


def test_sendrecv_copies_only_what_came(stream):
    """Also while it goes on to send."""
    c, data = alone(16), any_bytes("int32", 1, 20)
    attributes = {"sendtag": 1, "recvtag": 2}
    call = sendrecv(c, data, (30,))
    call.attributes.update(attributes)
    sent = [c.comm.Isend([data[:n], MPI.BYTE], dest=0, tag=2) for n in (4, 1)]
    pieces = [np.empty(4, "int32") for _ in range(6)]
    received = [c.comm.Irecv([piece, MPI.BYTE], source=0, tag=1) for piece in pieces]
    counts = counted(call, c, stream)
    MPI.Request.Waitall(sent + received)
    assert counts["bytes_down"] == 80
    assert counts["bytes_up"] == 20


@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_direct(name, stream, expect):
    """One wait for a call with data, and nothing else, unless the core packs it."""
    _core.set_direct(True)
    for chunk in (0, CHUNK):
        c = communicator(chunk)
        for count in (0, COUNT):
            for call in calls(name, c, "float32", count):
                counts = counted(call, c, stream, is_open=True)
                has_data = call.bytes_read > 0 or call.bytes_written > 0
                expect(counts.pop("cuStreamSynchronize"), has_data, call)
                if call.is_packed and count:
                    expect([counts[name] for name in COPIES], [1, 1], call)
                    moved = counts["bytes_down"], counts["bytes_up"]
                    expect(moved, (call.bytes_read, call.bytes_written), call)
                    continue
                expect(set(counts.values()), {0}, call)
                others = driver.count(*MEMORY, "cuEventRecord", "cuEventQuery")
                expect(others, 0, call)
