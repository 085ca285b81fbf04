"""Messages that travel in pieces, as who looks at them from outside sees them."""

import functools

import driver
import numpy as np
import pytest
from calls import (
    alone,
    any_bytes,
    communicator,
    new_status,
    on_device,
    on_host,
    recv,
    send,
    sendrecv,
    start_on_device,
)
from frames import XlaError
from mpi4py import MPI

from mpi4jax import _core

SELF = MPI.COMM_SELF
IS_OPEN_MPI = MPI.Get_library_version().startswith("Open MPI")
CHUNK = 48
#: Bytes of messages: none, less than a piece, pieces with a rest and without one.
LENGTHS = (0, 16, 48, 64, 96, 240, 256)
DTYPES = ("int8", "float32", "complex128")


@pytest.fixture(params=["host", "staged", "direct"])
def run(request, stream):
    """Makes a call with the arrays in one kind of memory."""
    return in_memory(request.param, stream)


def in_memory(kind, stream):
    if kind == "host":
        return on_host
    _core.set_direct(kind == "direct")
    return functools.partial(on_device, stream=stream, is_open=kind == "direct")


def pieces(nbytes):
    """The lengths in which a message travels: the last one is shorter than the others."""
    return [CHUNK] * (nbytes // CHUNK) + [nbytes % CHUNK]


def send_pieces(data, tag=7):
    """Send a message to this rank itself, as a handler would. Gives the requests."""
    data, requests, start = data.view(np.uint8), [], 0
    for length in pieces(data.nbytes):
        piece = data[start : start + length]
        requests.append(SELF.Isend([piece, MPI.BYTE], dest=0, tag=tag))
        start += length
    return requests


def data_of(nbytes, dtype="int8"):
    return any_bytes(dtype, 1, nbytes // np.dtype(dtype).itemsize)


@pytest.mark.parametrize("dtype", DTYPES)
def test_send(dtype, run):
    for nbytes in LENGTHS:
        data, lengths = data_of(nbytes, dtype), pieces(nbytes)
        rooms = [np.empty(2 * CHUNK, np.uint8) for _ in lengths]
        requests = [SELF.Irecv([room, MPI.BYTE], source=0, tag=7) for room in rooms]
        run(send(data, 0), alone(CHUNK))
        statuses = [MPI.Status() for _ in lengths]
        MPI.Request.Waitall(requests, statuses)
        assert [status.Get_count(MPI.BYTE) for status in statuses] == lengths
        received = zip(rooms, lengths, strict=True)
        assert b"".join(room[:n].tobytes() for room, n in received) == data.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_recv(dtype, run):
    """Also with room for more, from anyone, and with the status of the whole."""
    datatype = {"int8": MPI.INT8_T, "float32": MPI.FLOAT}.get(dtype, MPI.C_DOUBLE_COMPLEX)
    status, status_number = new_status()
    for nbytes in LENGTHS:
        for more in (0, 16, 48, 160):
            for source, tag in ((0, 7), (MPI.ANY_SOURCE, MPI.ANY_TAG)):
                data = data_of(nbytes, dtype)
                requests = send_pieces(data)
                room = (nbytes + more) // data.itemsize
                result = run(recv(dtype, (room,), source, tag, status_number), alone(CHUNK))
                MPI.Request.Waitall(requests)
                assert result[:nbytes] == data.tobytes(), (nbytes, more)
                assert (status.Get_source(), status.Get_tag()) == (0, 7)
                assert status.Get_count(datatype) == data.size
                assert status.Get_elements(datatype) == data.size
                assert status.Get_count(MPI.BYTE) == nbytes


def test_recv_without_status(run):
    requests = send_pieces(data_of(100))
    result = run(recv("int8", (200,), MPI.ANY_SOURCE, MPI.ANY_TAG), alone(CHUNK))
    MPI.Request.Waitall(requests)
    assert result[:100] == data_of(100).tobytes()


def test_messages_with_other_tags_come_between(run):
    """All pieces are of the message of which the first one was."""
    data, other = data_of(112), np.full(CHUNK, 9, np.int8)
    first, *rest = np.split(data, [CHUNK, 2 * CHUNK])
    requests = [SELF.Isend([first, MPI.BYTE], dest=0, tag=1)]
    requests += [SELF.Isend([other, MPI.BYTE], dest=0, tag=2)]
    requests += [SELF.Isend([piece, MPI.BYTE], dest=0, tag=1) for piece in rest]
    requests += [SELF.Isend([other[:0], MPI.BYTE], dest=0, tag=2)]
    for message in (data, other):
        receive = recv("int8", (112,), MPI.ANY_SOURCE, MPI.ANY_TAG)
        assert run(receive, alone(CHUNK))[: message.size] == message.tobytes()
    MPI.Request.Waitall(requests)


@pytest.mark.ranks(3)
def test_messages_of_other_ranks_come_between(run, stream):
    c = communicator(CHUNK)
    if c.rank > 0:
        run(send(np.full(10 * CHUNK, c.rank, np.int8), 0), c)
        return
    sources = []
    for _ in range(c.size - 1):
        status, status_number = new_status()
        receive = recv("int8", (10 * CHUNK,), MPI.ANY_SOURCE, MPI.ANY_TAG, status_number)
        result = run(receive, c)
        sources.append(status.Get_source())
        assert set(result) == {sources[-1]}
        assert status.Get_count(MPI.BYTE) == 10 * CHUNK
    assert sorted(sources) == list(range(1, c.size))


def test_sendrecv_with_two_lengths(run):
    """Each direction has its own number of pieces."""
    status, status_number = new_status()
    for sent in LENGTHS:
        for received in LENGTHS:
            for more in (0, 80):
                data, incoming = data_of(sent), data_of(received) ^ 1
                requests = send_pieces(incoming, tag=2)
                rooms = [np.empty(CHUNK, np.uint8) for _ in pieces(sent)]
                requests += [SELF.Irecv([r, MPI.BYTE], source=0, tag=1) for r in rooms]
                call = sendrecv(alone(CHUNK), data, (received + more,), status_number)
                call.attributes.update(sendtag=1, recvtag=2)
                # A result at the operand's address is another test.
                result = run(call, alone(CHUNK), in_place=False)
                MPI.Request.Waitall(requests)
                assert result[:received] == incoming.tobytes(), (sent, received, more)
                assert status.Get_count(MPI.BYTE) == received
                outgoing = b"".join(room.tobytes() for room in rooms)
                assert outgoing[:sent] == data.tobytes()


def test_sendrecv_around_the_ring(run):
    """Ranks send as many pieces as their number, and the first one none."""
    c = communicator(CHUNK)
    left = (c.rank - 1) % c.size
    for extra in (0, 5):
        sizes = [rank * (CHUNK + extra) for rank in range(c.size)]
        data = any_bytes("int8", c.rank, sizes[c.rank])
        result = run(sendrecv(c, data, (sizes[left],)), c)
        assert result == any_bytes("int8", left, sizes[left]).tobytes()


def test_a_shorter_message_in_place(run):
    """Elements that were not received stay as they are."""
    data, incoming = data_of(240), data_of(100) ^ 1
    requests = send_pieces(incoming, tag=2)
    rooms = [np.empty(CHUNK, np.uint8) for _ in pieces(240)]
    requests += [SELF.Irecv([room, MPI.BYTE], source=0, tag=1) for room in rooms]
    call = sendrecv(alone(CHUNK), data, (240,))
    call.attributes.update(sendtag=1, recvtag=2)
    result = run(call, alone(CHUNK), in_place=True)
    MPI.Request.Waitall(requests)
    assert result == incoming.tobytes() + data.tobytes()[100:]
    assert b"".join(room.tobytes() for room in rooms)[:240] == data.tobytes()


@pytest.mark.parametrize("chunk", [0, CHUNK])
def test_truncation(chunk, run):
    """A message that is longer than the result is MPI's error."""
    for room in (0, 16, 48, 64, 96):
        # Open MPI tells of it only where a message finds no room at all.
        if IS_OPEN_MPI and (room % chunk if chunk else room) > 0:
            continue
        for more in (1, 16, 48, 200):
            call = sendrecv(alone(chunk), data_of(room + more), (room,))
            with pytest.raises(XlaError) as error:
                run(call, alone(chunk))
            assert error.value.text.startswith("r0 | MPI_")
            assert "trunc" in error.value.text.lower()
            driver.idle()
            drain()
    call = sendrecv(alone(chunk), data_of(64), (64,))
    assert run(call, alone(chunk)) == data_of(64).tobytes()


def drain():
    """Take what a call had sent to this rank when it failed."""
    while SELF.Iprobe():
        SELF.Recv([np.empty(1000, np.uint8), MPI.BYTE])


PAIRS = [(a, b) for a in ("host", "staged", "direct") for b in ("host", "staged", "direct")]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_pairs(pair, stream):
    """Both ends see the same pieces, whatever memory they have their arrays in."""
    c = communicator(CHUNK)
    if c.rank > 1:
        return
    run, other = in_memory(pair[c.rank], stream), 1 - c.rank
    status, status_number = new_status()
    for nbytes in LENGTHS:
        sends = send(data_of(nbytes), other)
        receives = recv("int8", (nbytes + 50,), MPI.ANY_SOURCE, MPI.ANY_TAG, status_number)
        for call in (sends, receives) if c.rank == 0 else (receives, sends):
            result = run(call, c)
        received = result if c.rank == 0 else status.Get_count(MPI.BYTE)
        assert received is not None
        assert (status.Get_source(), status.Get_count(MPI.BYTE)) == (other, nbytes)
        for lengths in ((nbytes, 100), (100, nbytes), (nbytes, nbytes)):
            mine, its = lengths[c.rank], lengths[other]
            call = sendrecv(c, data_of(mine), (its,))
            call.attributes.update(dest=other, source=other)
            assert run(call, c) == data_of(its).tobytes()


@pytest.mark.parametrize("chunk", [0, CHUNK])
class TestNobody:
    """MPI_PROC_NULL takes everything and sends nothing, so there is nothing to copy."""

    def test_send(self, chunk, run):
        run(send(data_of(100), MPI.PROC_NULL), alone(chunk))
        assert driver.count("bytes_down", "bytes_up") == 0

    def test_recv(self, chunk, run):
        status, status_number = new_status()
        run(recv("int8", (100,), MPI.PROC_NULL, status=status_number), alone(chunk))
        assert driver.count("bytes_down", "bytes_up") == 0
        assert status.Get_source() == MPI.PROC_NULL
        assert status.Get_count(MPI.BYTE) == 0

    def test_sendrecv(self, chunk, run):
        for room in (20, 100, 300):
            call = sendrecv(alone(chunk), data_of(100), (room,))
            call.attributes.update(dest=MPI.PROC_NULL, source=MPI.PROC_NULL)
            run(call, alone(chunk))
            assert driver.count("bytes_down", "bytes_up") == 0

    def test_sendrecv_in_place(self, chunk, run):
        """The result is as it was."""
        call = sendrecv(alone(chunk), data_of(100), (100,))
        call.attributes.update(dest=MPI.PROC_NULL, source=MPI.PROC_NULL)
        assert run(call, alone(chunk), in_place=True) == data_of(100).tobytes()

    def test_sendrecv_from_nobody_in_place(self, chunk, run):
        call = sendrecv(alone(chunk), data_of(100), (100,))
        call.attributes.update(source=MPI.PROC_NULL)
        lengths = pieces(100) if chunk else [100]
        rooms = [np.empty(length, np.uint8) for length in lengths]
        requests = [SELF.Irecv([room, MPI.BYTE], source=0, tag=5) for room in rooms]
        assert run(call, alone(chunk), in_place=True) == data_of(100).tobytes()
        MPI.Request.Waitall(requests)
        assert b"".join(room.tobytes() for room in rooms) == data_of(100).tobytes()

    def test_sendrecv_to_nobody(self, chunk, run):
        """As much is received as there is room for."""
        incoming = data_of(160)
        requests = send_pieces(incoming, tag=5) if chunk else []
        if not chunk:
            requests = [SELF.Isend([incoming, MPI.BYTE], dest=0, tag=5)]
        call = sendrecv(alone(chunk), data_of(100), (160,))
        call.attributes.update(dest=MPI.PROC_NULL)
        assert run(call, alone(chunk)) == incoming.tobytes()
        MPI.Request.Waitall(requests)
        assert driver.count("bytes_down") == 0


@pytest.mark.parametrize("chunk", [0, CHUNK])
def test_a_result_is_used_in_stream_order(chunk, stream):
    """A chain of calls with nothing in between that waits."""
    c = alone(chunk)
    data = data_of(240)
    pending = [start_on_device(sendrecv(c, data ^ n, (240,)), c, stream) for n in range(20)]
    assert [call.get() for call in pending] == [(data ^ n).tobytes() for n in range(20)]
