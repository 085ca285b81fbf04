# Written by `make stubs` (tools/stubs.py) from the functions themselves.
from collections.abc import Callable
from typing import TypeVar, overload

from .._internal.arguments.types import (
    Array,
    ArrayLike,
    Comm,
    Counts,
    Integer,
    Op,
    RankTree,
    Status,
    T,
)
from .._internal.nonblocking.requests import Request
from .._internal.operations._arguments import ANY_SOURCE, ANY_TAG
from . import tree as tree

__all__ = [
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "exchange",
    "exscan",
    "gather",
    "gatherv",
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibcast",
    "iexchange",
    "iexscan",
    "igather",
    "igatherv",
    "in_order",
    "ineighbor_allgather",
    "ineighbor_allgatherv",
    "ineighbor_alltoall",
    "ineighbor_alltoallv",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "ireduce_scatterv",
    "iscan",
    "iscatter",
    "iscatterv",
    "isend",
    "isendrecv",
    "neighbor_allgather",
    "neighbor_allgatherv",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "ordering_barrier",
    "overlap",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatterv",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
    "wait",
]

R = TypeVar("R")

@overload
def allgather(x: ArrayLike, *, comm: Comm = None) -> Array: ...
@overload
def allgather(x: T, *, comm: Comm = None) -> T: ...
@overload
def allgatherv(x: ArrayLike, counts: Counts, *, comm: Comm = None) -> Array: ...
@overload
def allgatherv(x: T, counts: Counts, *, comm: Comm = None) -> T: ...
@overload
def allgatherv(
    x: ArrayLike,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[Array, Array]: ...
@overload
def allgatherv(
    x: T,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> tuple[T, Array]: ...
@overload
def allreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def allreduce(x: T, op: Op, *, comm: Comm = None) -> T: ...
@overload
def alltoall(x: ArrayLike, *, comm: Comm = None) -> Array: ...
@overload
def alltoall(x: T, *, comm: Comm = None) -> T: ...
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
def barrier(*, comm: Comm = None) -> None: ...
@overload
def bcast(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def bcast(x: T, root: Integer, *, comm: Comm = None) -> T: ...
def exchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
) -> T: ...
@overload
def exscan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def exscan(x: T, op: Op, *, comm: Comm = None) -> T: ...
@overload
def gather(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def gather(x: T, root: Integer, *, comm: Comm = None) -> T: ...
@overload
def gatherv(x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def gatherv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> T: ...
@overload
def iallgather(x: ArrayLike, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`allgather`, which :func:`wait` completes.

    Collect an array from every process, on every process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iallgather(x: T, *, comm: Comm = None) -> Request[T]: ...
@overload
def iallgatherv(x: ArrayLike, counts: Counts, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`allgatherv`, which :func:`wait` completes.

    Collect arrays of unequal length from all processes, on every process.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size
            ``counts[rank]``; the others, and the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process. With a
            capacity, this is the number of rows that this process sends, which the program
            may compute. ``x`` may have more rows.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iallgatherv(x: T, counts: Counts, *, comm: Comm = None) -> Request[T]: ...
@overload
def iallreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`allreduce`, which :func:`wait` completes.

    Reduce an array over all processes, with the result on every process.

    .. note::

       Can be differentiated if ``op`` is :obj:`mpi4py.MPI.SUM`, ``PROD``, ``MAX`` or
       ``MIN``.

    Arguments:
        x: Array or scalar input, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iallreduce(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
@overload
def ialltoall(x: ArrayLike, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`alltoall`, which :func:`wait` completes.

    Send a slice of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ialltoall(x: T, *, comm: Comm = None) -> Request[T]: ...
@overload
def ialltoallv(
    x: ArrayLike, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Request[Array]:
    """Start :func:`alltoallv`, which :func:`wait` completes.

    Send a part of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send, or a tree of arrays: the parts for all processes, one after
            the other in rank order, with shape ``(sum(sendcounts), ...)``.
        sendcounts (Sequence[int]): The size of the part for each process, along the first
            axis. With a capacity, this may be an array that the program computes, and
            ``x`` may have more rows, which are not sent.
        recvcounts (Sequence[int]): The size of the part that comes from each process. It
            must match ``sendcounts[rank]`` of that process. With a capacity, it is not
            given; the processes exchange it.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ialltoallv(
    x: T, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Request[T]: ...
def ibarrier(*, comm: Comm = None) -> Request[None]:
    """Start :func:`barrier`, which :func:`wait` completes.

    Wait until every process has reached the barrier.

    Arguments:
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once. The result is None.

    """

@overload
def ibcast(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`bcast`, which :func:`wait` completes.

    Send an array from one process to all others.

    .. warning::

        Unlike mpi4py's bcast, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input, or a tree of them. Data is only read on the root process.
            On the others this determines the shape and dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ibcast(x: T, root: Integer, *, comm: Comm = None) -> Request[T]: ...
def iexchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
) -> Request[T]:
    """Start :func:`exchange`, which :func:`wait` completes.

    Send and receive any number of messages at once.

    All receives are posted, then all sends, and then the call waits for all of them. So
    no order of the messages leads to a deadlock, and all are in flight at the same time.
    Each rank in ``dest`` and ``source`` stands for one message. It contains the array at
    the same position in ``sendbuf`` or ``recvbuf``, or the arrays of the tree there, of
    any types.

    Arguments:
        sendbuf: A tree of arrays or scalars to send, for example a list.
        recvbuf: A tree of arrays or scalars with the structure, shapes and dtypes of what
            is received. This can contain arbitrary data and will not be overwritten.
        source: The ranks that send the messages: a tree that is a prefix of the tree
            ``recvbuf``, for example a list of as many ranks, or one rank for all of
            ``recvbuf``.
        dest: The ranks that receive the messages, in the same way for ``sendbuf``.
        sendtag: A tag for all messages sent, or a tree of tags like ``dest``.
        recvtag: A tag for all messages received, or a tree of tags like ``source``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iexscan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`exscan`, which :func:`wait` completes.

    Reduce an array over the processes before this one.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iexscan(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
@overload
def igather(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`gather`, which :func:`wait` completes.

    Collect an array from every process, on one process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def igather(x: T, root: Integer, *, comm: Comm = None) -> Request[T]: ...
@overload
def igatherv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None
) -> Request[Array]:
    """Start :func:`gatherv`, which :func:`wait` completes.

    Collect arrays of unequal length from all processes, on one process.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size
            ``counts[rank]``; the others, and the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def igatherv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> Request[T]: ...
def in_order(tree: T) -> T: ...
@overload
def ineighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array]:
    """Start :func:`neighbor_allgather`, which :func:`wait` completes.

    Send an array to every neighbor, and receive those of the neighbors.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like ``x``. ``edge`` is its older name.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ineighbor_allgather(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[T]: ...
@overload
def ineighbor_allgatherv(
    x: ArrayLike, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array]:
    """Start :func:`neighbor_allgatherv`, which :func:`wait` completes.

    Send an array to every neighbor, and receive theirs, which may differ in size.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays. All processes must have the same shape
            apart from the first axis.
        counts (Sequence[int]): The size of the first axis on each neighbor that sends to
            this process. Where there is no process, as many rows are filled with
            ``fill_value``.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a row. ``edge`` is its older name.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ineighbor_allgatherv(
    x: T, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[T]: ...
@overload
def ineighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array]:
    """Start :func:`neighbor_alltoall`, which :func:`wait` completes.

    Send a slice of an array to every neighbor, and receive one from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays: a slice for each neighbor that this
            process sends to, with shape ``(outdegree, ...)``. All slices have the same
            shape, on all processes.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a slice. ``edge`` is its older name.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ineighbor_alltoall(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[T]: ...
@overload
def ineighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Request[Array]:
    """Start :func:`neighbor_alltoallv`, which :func:`wait` completes.

    Send a part of an array to every neighbor, and receive one from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays: the parts for the neighbors that this
            process sends to, one after the other, with shape ``(sum(sendcounts), ...)``.
        sendcounts (Sequence[int]): The size of the part for each of them, along the first
            axis.
        recvcounts (Sequence[int]): The size of the part that comes from each neighbor that
            sends to this process. It must match what that neighbor sends. Where there is no
            process, as many rows are filled with ``fill_value``.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a row. ``edge`` is its older name.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ineighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Request[T]: ...
@overload
def irecv(
    x: ArrayLike, source: Integer = ANY_SOURCE, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> Request[Array]:
    """Start :func:`recv`, which :func:`wait` completes.

    Receive an array from another process.

    .. warning::

        Unlike mpi4py's recv, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input with the correct shape and dtype, or a tree of them. This
           can contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def irecv(
    x: T, source: Integer = ANY_SOURCE, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> Request[T]: ...
@overload
def ireduce(x: ArrayLike, op: Op, root: Integer, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`reduce`, which :func:`wait` completes.

    Reduce an array over all processes, with the result on one process.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ireduce(x: T, op: Op, root: Integer, *, comm: Comm = None) -> Request[T]: ...
@overload
def ireduce_scatter(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`reduce_scatter`, which :func:`wait` completes.

    Reduce an array over all processes, with a slice of the result on each process.

    This is ``MPI_Reduce_scatter_block``: all slices have one shape.

    Arguments:
        x: Array input, or a tree of arrays. First axis must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ireduce_scatter(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
@overload
def ireduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None
) -> Request[Array]:
    """Start :func:`reduce_scatterv`, which :func:`wait` completes.

    Reduce an array over all processes, with some rows of the result on each process.

    This is ``MPI_Reduce_scatter``: the number of rows may differ from process to process.

    Arguments:
        x: Array input, or a tree of arrays: the rows for all processes, one after the other
            in rank order, with shape ``(sum(counts), ...)``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        counts (Sequence[int]): The number of rows for each process. It must be the same on
            all processes.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def ireduce_scatterv(x: T, op: Op, counts: Counts, *, comm: Comm = None) -> Request[T]: ...
@overload
def iscan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`scan`, which :func:`wait` completes.

    Reduce an array over this process and those before it.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iscan(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
@overload
def iscatter(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Request[Array]:
    """Start :func:`scatter`, which :func:`wait` completes.

    Send each process its slice of an array of one process.

    .. warning::

        Unlike mpi4py's scatter, this returns a *new* array with the received data.

    .. warning::

       The expected shape of the first argument differs between the root process and
       the others.

    Arguments:
        x: On root, the array to send, with shape ``(nproc, ...)``, or a tree of arrays.
           Elsewhere, an array with the shape and dtype of the result, or a tree of them,
           whose data is not read.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iscatter(x: T, root: Integer, *, comm: Comm = None) -> Request[T]: ...
@overload
def iscatterv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None
) -> Request[Array]:
    """Start :func:`scatterv`, which :func:`wait` completes.

    Send each process its part of an array of one process.

    .. warning::

       The expected shape of the first argument differs between the root process and
       the others.

    Arguments:
        x: On root, the parts for all processes, one after the other in rank order, with
           shape ``(sum(counts), ...)``. Elsewhere, an array with the shape and dtype of
           the result, ``(counts[rank], ...)``, whose data is not read. Or a tree of arrays.
        counts (Sequence[int]): The size of each process's part along the first axis.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def iscatterv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> Request[T]: ...
def isend(
    x: object, dest: Integer, *, tag: Integer = 0, comm: Comm = None
) -> Request[None]:
    """Start :func:`send`, which :func:`wait` completes.

    Send an array to another process.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once. The result is None.

    """

@overload
def isendrecv(
    sendbuf: object,
    recvbuf: ArrayLike,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Request[Array]:
    """Start :func:`sendrecv`, which :func:`wait` completes.

    Send an array to one process while receiving another from a process.

    .. warning::

        Unlike mpi4py's sendrecv, this returns a *new* array with the received data.

    Arguments:
        sendbuf: Array or scalar input to send, or a tree of them.
        recvbuf: Array or scalar input with the correct shape and dtype, or a tree of them.
           This can contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        dest (int): Rank of the destination MPI process.
        sendtag (int): Tag of this message for sending.
        recvtag (int): Tag of this message for receiving.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """

@overload
def isendrecv(
    sendbuf: object,
    recvbuf: T,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Request[T]: ...
@overload
def neighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array: ...
@overload
def neighbor_allgather(x: T, *, fill_value: ArrayLike = 0, comm: Comm = None) -> T: ...
@overload
def neighbor_allgatherv(
    x: ArrayLike, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array: ...
@overload
def neighbor_allgatherv(
    x: T, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> T: ...
@overload
def neighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Array: ...
@overload
def neighbor_alltoall(x: T, *, fill_value: ArrayLike = 0, comm: Comm = None) -> T: ...
@overload
def neighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Array: ...
@overload
def neighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> T: ...
def ordering_barrier(tree: T) -> T: ...
def overlap(communicate: Callable[[], T], *, during: Callable[[], R]) -> tuple[T, R]: ...
@overload
def recv(
    x: ArrayLike,
    source: Integer = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> Array: ...
@overload
def recv(
    x: T,
    source: Integer = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> T: ...
@overload
def reduce(x: ArrayLike, op: Op, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def reduce(x: T, op: Op, root: Integer, *, comm: Comm = None) -> T: ...
@overload
def reduce_scatter(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def reduce_scatter(x: T, op: Op, *, comm: Comm = None) -> T: ...
@overload
def reduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None
) -> Array: ...
@overload
def reduce_scatterv(x: T, op: Op, counts: Counts, *, comm: Comm = None) -> T: ...
@overload
def scan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Array: ...
@overload
def scan(x: T, op: Op, *, comm: Comm = None) -> T: ...
@overload
def scatter(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Array: ...
@overload
def scatter(x: T, root: Integer, *, comm: Comm = None) -> T: ...
@overload
def scatterv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None
) -> Array: ...
@overload
def scatterv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> T: ...
def send(x: object, dest: Integer, *, tag: Integer = 0, comm: Comm = None) -> None: ...
@overload
def sendrecv(
    sendbuf: object,
    recvbuf: ArrayLike,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> Array: ...
@overload
def sendrecv(
    sendbuf: object,
    recvbuf: T,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> T: ...
def wait(request: Request[T]) -> T: ...
