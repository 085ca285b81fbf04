"""The calls of every operation, and how to make them on the host and on the device.

What a handler gets is what it gets from the program of the operation's case in the table
(mpi4jax/_testing/cases), apart from the number of the communicator.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import frames
import jax
import numpy as np
from compiled import TYPES, CompiledCall, calls_in
from driver import DeviceArray, Stream, idle
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._internal.mpi import topology
from mpi4jax._internal.mpi.handles import NO_STATUS, handle
from mpi4jax._testing.cases import OPERATIONS, Case

#: The operations on one array at most. Several are exchanged in test_exchange.py.
OF_ONE_ARRAY = [name for name in OPERATIONS if name != "exchange"]
#: The operations that travel in pieces where the communicator says so.
IN_PIECES = [name for name in OF_ONE_ARRAY if OPERATIONS[name].goes_in_pieces]
WHOLE = [name for name in OF_ONE_ARRAY if not OPERATIONS[name].goes_in_pieces]
#: Types of 1, 2, 4, 8 and 16 bytes.
DTYPES = list(TYPES.values())

_numbers = itertools.count(1000)


class Communicator(NamedTuple):
    """A communicator with messages in pieces of `chunk` bytes, or in one (0)."""

    comm: MPI.Intracomm
    chunk: int
    #: The identifier of the communicator in the core.
    comm_number: int
    rank: int
    size: int


def communicator(chunk: int = 0, comm: MPI.Intracomm = MPI.COMM_WORLD) -> Communicator:
    key = chunk, handle(comm)
    if key not in _communicators:
        rank, size = comm.Get_rank(), comm.Get_size()
        made = Communicator(comm, chunk, next(_numbers), rank, size)
        _core.set_communicator(made.comm_number, handle(comm), rank, size, chunk)
        # Those of the cases: messages travel on a communicator that the core makes.
        case = OPERATIONS["neighbor_alltoall"].replace(comm=comm)
        neighbors = topology.neighbors_of(case.neighborhood)
        _core.set_neighbors(made.comm_number, neighbors.sources, neighbors.destinations)
        _communicators[key] = made
    return _communicators[key]


_communicators: dict[tuple[int, int], Communicator] = {}


def alone(chunk: int = 0) -> Communicator:
    """One of this rank only."""
    return communicator(chunk, MPI.COMM_SELF)


def free_communicators() -> None:
    for made in _communicators.values():
        _core.free_communicator(made.comm_number)


def new_status() -> tuple[MPI.Status, int]:
    """A status, and its number."""
    status, status_number = MPI.Status(), next(_status_numbers)
    _core.set_status(status_number, MPI._addressof(status))
    return status, status_number


_status_numbers = itertools.count(1000)


def cancel(request: MPI.Request) -> None:
    """Take back what a call was to receive or to be sent, if it did not come so far."""
    if not request.Test():
        request.Cancel()
        request.Wait()


class Call(NamedTuple):
    """The arguments of a handler on one rank."""

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
    #: Whether to make the call in place: no, and yes if it may be. Where that is so on some
    #: ranks only, the others make the call twice, too.
    ways: tuple[bool, ...] = (False,)
    #: False where MPI leaves open what is in the result.
    is_defined: bool = True
    #: The result, if it is known.
    expected: bytes | None = None
    #: Whether the core packs blocks in host memory, if they are small.
    is_packed: bool = False

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


def calls(name: str, c: Communicator, dtype: Any, count: int) -> list[Call]:
    """The calls of an operation that this rank makes, with `count` elements or rows.

    All ranks make theirs, in this order.
    """
    case = OPERATIONS[name].replace(comm=c.comm)
    if case.size < case.least_size:
        return []
    dtype = np.dtype(dtype)
    made = [
        call
        for root in case.roots
        for call in _calls(case.replace(root=root), dtype, count)
    ]
    return made + [_from_the_end(case, call, count) for call in made if _is_scan(call)]


def _calls(case: Case, dtype: np.dtype, count: int) -> list[Call]:
    xs, expected = _arrays(case, dtype, count)
    return [
        _call(case, compiled, xs[case.rank], expected)
        for compiled in _compiled(case)[dtype.name]
    ]


def _arrays(case: Case, dtype: np.dtype, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The arrays of all ranks, and what this one gets."""
    make = small_numbers if case.is_reduction else any_bytes
    xs = case.arrays(lambda rank, shape: make(dtype, rank, *shape), (count,))
    return xs, case.result(xs)


def _compiled(case: Case) -> dict[str, list[CompiledCall]]:
    """The calls of handlers that a case makes, for each type."""
    # The number of elements makes no difference, nor does the communicator.
    key = case.name, case.rank, case.size, case.root
    if key not in _compiled_calls:
        shape = case.shape((3,))
        types = [jax.ShapeDtypeStruct(shape, dtype) for dtype in DTYPES]
        by_dtype = dict(zip(DTYPES, calls_in(case.call, types), strict=True))
        for dtype, made in by_dtype.items():
            _, result = _arrays(case, np.dtype(dtype), 3)
            assert {call.operand for call in made} <= {None, (dtype, shape)}
            assert {call.result for call in made} <= {None, (dtype, result.shape)}
        _compiled_calls[key] = by_dtype
    return _compiled_calls[key]


_compiled_calls: dict[Any, dict[str, list[CompiledCall]]] = {}


def _call(case: Case, compiled: CompiledCall, x: np.ndarray, expected: np.ndarray) -> Call:
    # The handler of sendrecv has a way for it, which XLA is not told of.
    in_place = compiled.in_place or (
        compiled.name == "sendrecv" and x.shape == expected.shape
    )
    anywhere = (case.comm or MPI.COMM_WORLD).allreduce(in_place, MPI.LOR)
    return Call(
        compiled.name,
        dict(compiled.attributes),
        x.dtype,
        None if compiled.operand is None else x,
        None if compiled.result is None else expected.shape,
        is_read=case.is_read,
        in_place=in_place,
        ways=(False, in_place) if anywhere else (False,),
        is_defined=compiled.result is None or compiled.is_used,
        expected=expected.tobytes() if compiled.is_used else None,
        is_packed=_is_packed(case),
    )


def _is_packed(case: Case) -> bool:
    """Whether several blocks are for one process, or from one."""
    if case.name not in ("neighbor_allgather", "neighbor_alltoall"):
        return False
    neighbors = topology.neighbors_of(case.neighborhood)
    ranks = [
        [end.rank for end in ends if not end.is_proc_null]
        for ends in (neighbors.sources, neighbors.destinations)
    ]
    return any(len(set(each)) < len(each) for each in ranks)


def _is_scan(call: Call) -> bool:
    return "reverse" in call.attributes


def _from_the_end(case: Case, call: Call, count: int) -> Call:
    """A scan from the last rank to the first, to which one is transposed."""
    mirrored = case.of(case.size - 1 - case.rank)
    xs, _ = _arrays(case, call.dtype, count)
    is_defined = call.name != "exscan" or mirrored.rank > 0
    return call._replace(
        attributes={**call.attributes, "reverse": 1},
        is_defined=is_defined,
        expected=mirrored.result(xs[::-1]).tobytes() if is_defined else None,
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
    return Call("sendrecv", attributes, operand.dtype, operand, result)


def send(operand: np.ndarray, dest: int, tag: int = 7) -> Call:
    return Call("send", {"dest": dest, "tag": tag}, operand.dtype, operand)


def recv(
    dtype: Any, shape: tuple[int, ...], source: int, tag: int = 7, status: int = NO_STATUS
) -> Call:
    attributes = {"source": source, "tag": tag, "status_number": status}
    return Call("recv", attributes, dtype, None, shape)


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
    """Call a handler on the device, and wait for the result."""
    return start_on_device(call, c, stream, **options).get()


def run_on_device(
    call: Call, c: Communicator, operand: Any, result: Any, stream: Stream
) -> None:
    """Make a call with these arrays of the device."""
    _run(frames.ON_DEVICE, call, c, operand, result, stream.handle)


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
        {**call.attributes, "comm_number": c.comm_number},
        stream,
    )
