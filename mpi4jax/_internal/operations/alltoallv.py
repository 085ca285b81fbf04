"""MPI_Alltoallv (MPI-4.1 §6.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Counts, Integer, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray
from ._arguments import check_rows, like, needs_capacity, refuse_uneven, row_counts
from ._calls import Call
from ._operation import Operation
from ._ragged import CountsOperation, RowsOperation, check_padded, counts_array, fill_up
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class AllToAllV(Operation):
    sendcounts: tuple[int, ...]
    recvcounts: tuple[int, ...]

    name = "alltoallv"

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return like(x, (sum(self.recvcounts), *x.shape[1:]))

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1


@as_primitive
@dataclass(frozen=True)
class AllToAllVCounts(CountsOperation):
    name = "alltoallv_counts"
    operands = ("sendcounts",)


@as_primitive
@dataclass(frozen=True)
class AllToAllVRows(RowsOperation):
    name = "alltoallv_rows"
    operands = ("x", "sendcounts", "recvcounts")
    count_operands = 2


def call(
    function: str,
    x: ArrayLike | T,
    sendcounts: Counts | Array,
    recvcounts: Counts | None,
    *,
    comm: Comm = None,
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of alltoallv."""
    communicator = handles.communicator(function, comm)
    refuse_uneven(function, communicator)
    needs_capacity(function, "sendcounts", sendcounts)
    sendcounts = row_counts(function, "sendcounts", sendcounts, communicator.size)
    recvcounts = row_counts(function, "recvcounts", recvcounts, communicator.size)
    rank = communicator.rank
    if sendcounts[rank] != recvcounts[rank]:
        raise ValueError(
            f"{function} got {sendcounts[rank]} rows in `sendcounts` and "
            f"{recvcounts[rank]} in `recvcounts` for this process itself (rank {rank}), "
            "expected the same number"
        )
    check_rows(function, "x", x, sum(sendcounts))
    return Call(function, AllToAllV(communicator, sendcounts, recvcounts), x)


@overload
def alltoallv(
    x: ArrayLike, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Array: ...
@overload
def alltoallv(x: T, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None) -> T: ...
@overload
def alltoallv(
    x: ArrayLike,
    sendcounts: Counts | Array,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[Array, Array]: ...
@overload
def alltoallv(
    x: T,
    sendcounts: Counts | Array,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[T, Array]: ...
def alltoallv(
    x: ArrayLike | T,
    sendcounts: Counts | Array,
    recvcounts: Counts | None = None,
    *,
    capacity: Integer | None = None,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> Array | T | tuple[Array | T, Array]:
    """Send a part of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send, or a tree of arrays: the parts for all processes, one after
            the other in rank order, with shape ``(sum(sendcounts), ...)``.
        sendcounts (Sequence[int]): The size of the part for each process, along the first
            axis. With a capacity, this may be an array that the program computes, and
            ``x`` may have more rows, which are not sent.
        recvcounts (Sequence[int]): The size of the part that comes from each process. It
            must match ``sendcounts[rank]`` of that process. With a capacity, it is not
            given; the processes exchange it.
        capacity (int): The number of rows of the result, for counts that the program
            computes. It need not be the same on all processes. If there would be more rows,
            this is an error on all of them, and nothing is sent.
        fill_value: The value of the remaining rows of the result, if it has a capacity: a
            number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received parts, one after the other in rank order: shape
        ``(sum(recvcounts), ...)``. With a capacity, a tuple of these, padded to the shape
        ``(capacity, ...)``, and the number of rows received from each process.

    """
    raise_if_token_is_set(token, "alltoallv")
    name = "alltoallv"
    if capacity is None:
        return call(name, x, sendcounts, recvcounts, comm=comm).run()
    communicator = handles.communicator(name, comm)
    rows, capacity, padding = check_padded(name, x, capacity, fill_value)
    if recvcounts is not None:
        raise TypeError(
            f"{name} got both `recvcounts` and `capacity`, expected one of them: with "
            "a capacity, it finds out how many rows come, and returns that"
        )
    counts = counts_array(name, "sendcounts", sendcounts, (communicator.size,))
    of_counts = AllToAllVCounts(communicator, rows=rows, capacity=capacity)
    exchange_counts: Call[Array] = Call(name, of_counts, counts)
    received = exchange_counts.run()
    of_rows = AllToAllVRows(communicator, capacity=capacity)
    move_rows: Call[Array | T] = Call(name, of_rows, x, counts, received)
    return fill_up(move_rows.run(), received, padding)
