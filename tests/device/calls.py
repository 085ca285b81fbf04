"""The calls of every operation, and how to make them on the host and on the device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import frames
import jax.numpy as jnp
import numpy as np
from driver import DeviceArray, Stream, idle
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._internal.dtypes import SUM
from mpi4jax._internal.handles import NO_STATUS, handle

REDUCTIONS = ("allreduce", "exscan", "reduce", "reduce_scatter", "scan")
#: What travels in pieces where the communicator says so.
IN_PIECES = ("allreduce", "bcast", "exscan", "reduce", "scan", "ring", "sendrecv")
WHOLE = (
    "allgather allgatherv alltoall alltoallv barrier gather gatherv reduce_scatter "
    "scatter scatterv"
).split()
#: All operations. "ring" is send and recv.
OPERATIONS = (*IN_PIECES, *WHOLE)
#: Types of 1, 2, 4, 8 and 16 bytes.
DTYPES = "int8 float16 bfloat16 float32 int64 float64 complex128".split()

_numbers = itertools.count(1000)


class Communicator(NamedTuple):
    """A communicator with messages in pieces of `chunk` bytes, or in one (0)."""

    comm: MPI.Intracomm
    chunk: int
    #: By which the core knows it.
    number: int
    rank: int
    size: int


def communicator(chunk: int = 0, comm: MPI.Intracomm = MPI.COMM_WORLD) -> Communicator:
    key = chunk, handle(comm)
    if key not in _communicators:
        rank, size = comm.Get_rank(), comm.Get_size()
        made = Communicator(comm, chunk, next(_numbers), rank, size)
        _core.set_communicator(made.number, handle(comm), rank, size, chunk)
        _communicators[key] = made
    return _communicators[key]


_communicators: dict[tuple[int, int], Communicator] = {}


def alone(chunk: int = 0) -> Communicator:
    """One of this rank only."""
    return communicator(chunk, MPI.COMM_SELF)


def free_communicators() -> None:
    for made in _communicators.values():
        _core.free_communicator(made.number)


def new_status() -> tuple[MPI.Status, int]:
    """A status, and its number."""
    status, number = MPI.Status(), next(_status_numbers)
    _core.set_status(number, MPI._addressof(status))
    return status, number


_status_numbers = itertools.count(1000)


def cancel(request: MPI.Request) -> None:
    """Take back what a call was to receive or to be sent, if it did not come so far."""
    if not request.Test():
        request.Cancel()
        request.Wait()


class Call(NamedTuple):
    """What one rank hands to a handler."""

    name: str
    attributes: dict[str, Any]
    dtype: Any
    operand: np.ndarray | None = None
    #: The shape of the result.
    result: tuple[int, ...] | None = None
    #: False where the operand only lends its memory to the result.
    is_read: bool = True
    #: Whether the result may be where the operand is.
    in_place: bool = False
    #: False where MPI leaves open what is in the result.
    is_defined: bool = True

    @property
    def label(self) -> str:
        sent = None if self.operand is None else self.operand.shape
        return f"{self.name} of {self.dtype}, {sent} -> {self.result}, {self.attributes}"

    @property
    def bytes_read(self) -> int:
        return 0 if self.operand is None or not self.is_read else self.operand.nbytes

    @property
    def bytes_written(self) -> int:
        if self.result is None:
            return 0
        return int(np.prod(self.result, dtype=int)) * np.dtype(self.dtype).itemsize


def any_bytes(dtype: Any, rank: int, *shape: int) -> np.ndarray:
    array = np.empty(shape, dtype)
    generator = np.random.default_rng([rank, array.nbytes])
    array.reshape(-1).view(np.uint8)[:] = generator.integers(0, 256, array.nbytes)
    return array


def small_numbers(dtype: Any, rank: int, *shape: int) -> np.ndarray:
    """Numbers whose sums are exact in every type, in whatever order they are made."""
    generator = np.random.default_rng(rank)
    array = generator.integers(-3, 4, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        array = array + array.dtype.type(1j) * generator.integers(-3, 4, shape)
    return array


def counts_of(size: int) -> list[int]:
    """The rows of each rank."""
    return [(2 * rank + 1) % 4 for rank in range(size)]


def rows_between(sender: int, receiver: int) -> int:
    return (sender + receiver + 1) % 3


def calls(name: str, c: Communicator, dtype: Any, count: int) -> list[Call]:
    """The calls of an operation that this rank makes, with so many elements, or in a row.

    All ranks make theirs, in this order.
    """
    roots = dict.fromkeys((0, c.size - 1))
    if name in ("bcast", "gather", "gatherv", "reduce", "scatter", "scatterv"):
        return [_rooted(name, c, jnp.dtype(dtype), count, root) for root in roots]
    if name in ("exscan", "scan"):
        return [_scan(name, c, jnp.dtype(dtype), count, reverse) for reverse in (0, 1)]
    if name == "ring":
        return _ring(c, jnp.dtype(dtype), count)
    return [_plain(name, c, jnp.dtype(dtype), count)]


def _plain(name: str, c: Communicator, dtype: Any, count: int) -> Call:
    if name == "barrier":
        return Call(name, {}, dtype)
    make = small_numbers if name in REDUCTIONS else any_bytes
    data = functools.partial(make, dtype, c.rank)
    if name == "allgather":
        return Call(name, {}, dtype, data(count), (c.size, count))
    if name == "allreduce":
        return Call(name, {"op_number": SUM}, dtype, data(count), (count,), in_place=True)
    if name == "alltoall":
        return Call(name, {}, dtype, data(c.size, count), (c.size, count))
    if name == "reduce_scatter":
        return Call(name, {"op_number": SUM}, dtype, data(c.size, count), (count,))
    if name == "sendrecv":
        return sendrecv(c, data(count), (count,))
    if name == "allgatherv":
        counts = counts_of(c.size)
        shape = (sum(counts), count)
        return Call(name, {"counts": counts}, dtype, data(counts[c.rank], count), shape)
    assert name == "alltoallv"
    sent = [rows_between(c.rank, rank) for rank in range(c.size)]
    received = [rows_between(rank, c.rank) for rank in range(c.size)]
    attributes = {"sendcounts": sent, "recvcounts": received}
    return Call(name, attributes, dtype, data(sum(sent), count), (sum(received), count))


def _rooted(name: str, c: Communicator, dtype: Any, count: int, root: int) -> Call:
    is_root, attributes = c.rank == root, {"root": root}
    make = small_numbers if name in REDUCTIONS else any_bytes
    data = functools.partial(make, dtype, c.rank)
    if name == "bcast":
        if is_root:
            return Call(name, attributes, dtype, data(count))
        return Call(name, attributes, dtype, data(count), (count,), False, True)
    if name == "reduce":
        attributes["op_number"] = SUM
        shape = (count,) if is_root else None
        return Call(name, attributes, dtype, data(count), shape, in_place=is_root)
    if name in ("gather", "scatter"):
        mine: tuple[int, ...] = (count,)
        all_: tuple[int, ...] = (c.size, count)
    else:
        attributes["counts"] = counts = counts_of(c.size)
        mine, all_ = (counts[c.rank], count), (sum(counts), count)
    if name.startswith("gather"):
        return Call(name, attributes, dtype, data(*mine), all_ if is_root else None)
    return Call(name, attributes, dtype, data(*all_) if is_root else None, mine)


def _scan(name: str, c: Communicator, dtype: Any, count: int, reverse: int) -> Call:
    first = c.size - 1 if reverse else 0
    return Call(
        name,
        {"op_number": SUM, "reverse": reverse},
        dtype,
        small_numbers(dtype, c.rank, count),
        (count,),
        in_place=True,
        is_defined=name == "scan" or c.rank != first,
    )


def sendrecv(
    c: Communicator,
    operand: np.ndarray,
    result: tuple[int, ...],
    status: int = NO_STATUS,
) -> Call:
    """To the right, and from the left."""
    attributes = {
        "dest": (c.rank + 1) % c.size,
        "sendtag": 5,
        "source": (c.rank - 1) % c.size,
        "recvtag": 5,
        "status_number": status,
    }
    in_place = operand.shape == result
    return Call("sendrecv", attributes, operand.dtype, operand, result, in_place=in_place)


def send(operand: np.ndarray, dest: int, tag: int = 7) -> Call:
    return Call("send", {"dest": dest, "tag": tag}, operand.dtype, operand)


def recv(
    dtype: Any, shape: tuple[int, ...], source: int, tag: int = 7, status: int = NO_STATUS
) -> Call:
    attributes = {"source": source, "tag": tag, "status_number": status}
    return Call("recv", attributes, dtype, None, shape)


def _ring(c: Communicator, dtype: Any, count: int) -> list[Call]:
    """Rank 0 sends first, and the others after they have received. One rank can't."""
    if c.size == 1:
        return []
    sends = send(any_bytes(dtype, c.rank, count), (c.rank + 1) % c.size)
    receives = recv(dtype, (count,), (c.rank - 1) % c.size)
    return [sends, receives] if c.rank == 0 else [receives, sends]


def ways(call: Call) -> Iterator[bool]:
    """Whether to make a call in place: no, and yes where it can be.

    Where only some ranks can, the others make it twice, too.
    """
    yield False
    if call.name in ("allreduce", "bcast", "exscan", "reduce", "scan", "sendrecv"):
        yield call.in_place


def on_host(call: Call, c: Communicator, in_place: bool = False) -> bytes | None:
    """Make a call with arrays of NumPy's. Gives the result."""
    operand = None if call.operand is None else call.operand.copy()
    result = None
    if call.result is not None:
        result = operand if in_place else np.zeros(call.result, call.dtype)
    _run(frames.ON_HOST, call, c, operand, result)
    return None if result is None else result.tobytes()


class Pending(NamedTuple):
    """A call that was made on the device, whose result is used before it is there."""

    call: Call
    operand: DeviceArray | None
    result: DeviceArray | None
    used: DeviceArray | None

    def get(self) -> bytes | None:
        """The result, when the streams are idle."""
        idle()
        if self.operand not in (None, self.result):
            # What is only read must stay as it was.
            assert self.operand.read().tobytes() == self.call.operand.tobytes()
        return None if self.used is None else self.used.read().tobytes()


def start_on_device(
    call: Call,
    c: Communicator,
    stream: Stream,
    in_place: bool = False,
    is_open: bool = False,
    delay: int = 100,
) -> Pending:
    """Make a call with arrays of the device.

    The stream writes the operand only later, and uses the result without being waited for.
    """
    operand = result = None
    if call.operand is not None:
        operand = DeviceArray(call.dtype, call.operand.shape, is_open)
        operand.write_later(call.operand, stream, delay)
    if call.result is not None:
        result = operand if in_place else DeviceArray(call.dtype, call.result, is_open)
    _run(frames.ON_DEVICE, call, c, operand, result, stream.handle)
    used = None if result is None else result.copy_later(stream)
    return Pending(call, operand, result, used)


def on_device(call: Call, c: Communicator, stream: Stream, **options: Any) -> bytes | None:
    """The same, and wait for the result."""
    return start_on_device(call, c, stream, **options).get()


def _run(
    handlers: dict[str, Any],
    call: Call,
    c: Communicator,
    operand: Any,
    result: Any,
    stream: int | None = None,
) -> None:
    frames.call(
        handlers[call.name],
        [] if operand is None else [operand],
        [] if result is None else [result],
        {**call.attributes, "comm_number": c.number},
        stream,
    )
