# Written by tools/forms.py (`make format`) from _internal/operations.
"""The nonblocking form of each operation (MPI-4.1 §3.7, §6.12)."""

from __future__ import annotations

from typing import overload

from ..arguments.types import (
    Array,
    ArrayLike,
    Comm,
    Counts,
    Integer,
    Op,
    Rank,
    RankTree,
    T,
)
from ..operations import (
    allgather,
    allgatherv,
    allreduce,
    alltoall,
    alltoallv,
    barrier,
    bcast,
    exchange,
    exscan,
    gather,
    gatherv,
    neighbor_allgather,
    neighbor_allgatherv,
    neighbor_alltoall,
    neighbor_alltoallv,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatterv,
    scan,
    scatter,
    scatterv,
    send,
    sendrecv,
)
from ..operations._arguments import ANY_SOURCE, ANY_TAG
from .requests import Request, start_call


@overload
def iallgather(x: ArrayLike, *, comm: Comm = None) -> Request[Array]: ...
@overload
def iallgather(x: T, *, comm: Comm = None) -> Request[T]: ...
def iallgather(x: ArrayLike | T, *, comm: Comm = None) -> Request[Array] | Request[T]:
    """Start :func:`allgather`, which :func:`wait` completes.

    The arguments are those of :func:`allgather`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(allgather.call("iallgather", x, comm=comm))


@overload
def iallgatherv(x: ArrayLike, counts: Counts, *, comm: Comm = None) -> Request[Array]: ...
@overload
def iallgatherv(x: T, counts: Counts, *, comm: Comm = None) -> Request[T]: ...
def iallgatherv(
    x: ArrayLike | T, counts: Counts, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`allgatherv`, which :func:`wait` completes.

    The arguments are those of :func:`allgatherv`, but for ``capacity``, for which
    counts would have to be exchanged first.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(allgatherv.call("iallgatherv", x, counts, comm=comm))


@overload
def iallreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]: ...
@overload
def iallreduce(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
def iallreduce(
    x: ArrayLike | T, op: Op, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`allreduce`, which :func:`wait` completes.

    The arguments are those of :func:`allreduce`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(allreduce.call("iallreduce", x, op, comm=comm))


@overload
def ialltoall(x: ArrayLike, *, comm: Comm = None) -> Request[Array]: ...
@overload
def ialltoall(x: T, *, comm: Comm = None) -> Request[T]: ...
def ialltoall(x: ArrayLike | T, *, comm: Comm = None) -> Request[Array] | Request[T]:
    """Start :func:`alltoall`, which :func:`wait` completes.

    The arguments are those of :func:`alltoall`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(alltoall.call("ialltoall", x, comm=comm))


@overload
def ialltoallv(
    x: ArrayLike, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Request[Array]: ...
@overload
def ialltoallv(
    x: T, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Request[T]: ...
def ialltoallv(
    x: ArrayLike | T, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`alltoallv`, which :func:`wait` completes.

    The arguments are those of :func:`alltoallv`, but for ``capacity``, for which counts
    would have to be exchanged first.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(alltoallv.call("ialltoallv", x, sendcounts, recvcounts, comm=comm))


def ibarrier(*, comm: Comm = None) -> Request[None]:
    """Start :func:`barrier`, which :func:`wait` completes.

    The arguments are those of :func:`barrier`.

    Returns:
        A request, to be passed to :func:`wait` once. The result is None.

    """
    return start_call(barrier.call("ibarrier", comm=comm))


@overload
def ibcast(x: ArrayLike, root: Rank, *, comm: Comm = None) -> Request[Array]: ...
@overload
def ibcast(x: T, root: Rank, *, comm: Comm = None) -> Request[T]: ...
def ibcast(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`bcast`, which :func:`wait` completes.

    The arguments are those of :func:`bcast`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(bcast.call("ibcast", x, root, comm=comm))


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

    The arguments are those of :func:`exchange`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(
        exchange.call(
            "iexchange",
            sendbuf,
            recvbuf,
            source,
            dest,
            sendtag=sendtag,
            recvtag=recvtag,
            comm=comm,
        )
    )


@overload
def iexscan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]: ...
@overload
def iexscan(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
def iexscan(x: ArrayLike | T, op: Op, *, comm: Comm = None) -> Request[Array] | Request[T]:
    """Start :func:`exscan`, which :func:`wait` completes.

    The arguments are those of :func:`exscan`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(exscan.call("iexscan", x, op, comm=comm))


@overload
def igather(x: ArrayLike, root: Rank, *, comm: Comm = None) -> Request[Array]: ...
@overload
def igather(x: T, root: Rank, *, comm: Comm = None) -> Request[T]: ...
def igather(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`gather`, which :func:`wait` completes.

    The arguments are those of :func:`gather`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(gather.call("igather", x, root, comm=comm))


@overload
def igatherv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None
) -> Request[Array]: ...
@overload
def igatherv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> Request[T]: ...
def igatherv(
    x: ArrayLike | T, counts: Counts, root: Integer, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`gatherv`, which :func:`wait` completes.

    The arguments are those of :func:`gatherv`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(gatherv.call("igatherv", x, counts, root, comm=comm))


@overload
def ineighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array]: ...
@overload
def ineighbor_allgather(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[T]: ...
def ineighbor_allgather(
    x: ArrayLike | T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`neighbor_allgather`, which :func:`wait` completes.

    The arguments are those of :func:`neighbor_allgather`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(
        neighbor_allgather.call("ineighbor_allgather", x, fill_value=fill_value, comm=comm)
    )


@overload
def ineighbor_allgatherv(
    x: ArrayLike, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array]: ...
@overload
def ineighbor_allgatherv(
    x: T, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[T]: ...
def ineighbor_allgatherv(
    x: ArrayLike | T, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`neighbor_allgatherv`, which :func:`wait` completes.

    The arguments are those of :func:`neighbor_allgatherv`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(
        neighbor_allgatherv.call(
            "ineighbor_allgatherv", x, counts, fill_value=fill_value, comm=comm
        )
    )


@overload
def ineighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array]: ...
@overload
def ineighbor_alltoall(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[T]: ...
def ineighbor_alltoall(
    x: ArrayLike | T, *, fill_value: ArrayLike = 0, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`neighbor_alltoall`, which :func:`wait` completes.

    The arguments are those of :func:`neighbor_alltoall`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(
        neighbor_alltoall.call("ineighbor_alltoall", x, fill_value=fill_value, comm=comm)
    )


@overload
def ineighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Request[Array]: ...
@overload
def ineighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Request[T]: ...
def ineighbor_alltoallv(
    x: ArrayLike | T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
) -> Request[Array] | Request[T]:
    """Start :func:`neighbor_alltoallv`, which :func:`wait` completes.

    The arguments are those of :func:`neighbor_alltoallv`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(
        neighbor_alltoallv.call(
            "ineighbor_alltoallv",
            x,
            sendcounts,
            recvcounts,
            fill_value=fill_value,
            comm=comm,
        )
    )


@overload
def irecv(
    x: ArrayLike, source: Rank = ANY_SOURCE, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> Request[Array]: ...
@overload
def irecv(
    x: T, source: Rank = ANY_SOURCE, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> Request[T]: ...
def irecv(
    x: ArrayLike | T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Request[Array] | Request[T]:
    """Start :func:`recv`, which :func:`wait` completes.

    The arguments are those of :func:`recv`, but for ``status``.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(recv.call("irecv", x, source, tag=tag, comm=comm))


@overload
def ireduce(x: ArrayLike, op: Op, root: Rank, *, comm: Comm = None) -> Request[Array]: ...
@overload
def ireduce(x: T, op: Op, root: Rank, *, comm: Comm = None) -> Request[T]: ...
def ireduce(
    x: ArrayLike | T, op: Op, root: Rank, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`reduce`, which :func:`wait` completes.

    The arguments are those of :func:`reduce`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(reduce.call("ireduce", x, op, root, comm=comm))


@overload
def ireduce_scatter(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]: ...
@overload
def ireduce_scatter(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
def ireduce_scatter(
    x: ArrayLike | T, op: Op, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`reduce_scatter`, which :func:`wait` completes.

    The arguments are those of :func:`reduce_scatter`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(reduce_scatter.call("ireduce_scatter", x, op, comm=comm))


@overload
def ireduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None
) -> Request[Array]: ...
@overload
def ireduce_scatterv(x: T, op: Op, counts: Counts, *, comm: Comm = None) -> Request[T]: ...
def ireduce_scatterv(
    x: ArrayLike | T, op: Op, counts: Counts, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`reduce_scatterv`, which :func:`wait` completes.

    The arguments are those of :func:`reduce_scatterv`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(reduce_scatterv.call("ireduce_scatterv", x, op, counts, comm=comm))


@overload
def iscan(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]: ...
@overload
def iscan(x: T, op: Op, *, comm: Comm = None) -> Request[T]: ...
def iscan(x: ArrayLike | T, op: Op, *, comm: Comm = None) -> Request[Array] | Request[T]:
    """Start :func:`scan`, which :func:`wait` completes.

    The arguments are those of :func:`scan`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(scan.call("iscan", x, op, comm=comm))


@overload
def iscatter(x: ArrayLike, root: Rank, *, comm: Comm = None) -> Request[Array]: ...
@overload
def iscatter(x: T, root: Rank, *, comm: Comm = None) -> Request[T]: ...
def iscatter(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`scatter`, which :func:`wait` completes.

    The arguments are those of :func:`scatter`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(scatter.call("iscatter", x, root, comm=comm))


@overload
def iscatterv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None
) -> Request[Array]: ...
@overload
def iscatterv(x: T, counts: Counts, root: Integer, *, comm: Comm = None) -> Request[T]: ...
def iscatterv(
    x: ArrayLike | T, counts: Counts, root: Integer, *, comm: Comm = None
) -> Request[Array] | Request[T]:
    """Start :func:`scatterv`, which :func:`wait` completes.

    The arguments are those of :func:`scatterv`.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(scatterv.call("iscatterv", x, counts, root, comm=comm))


def isend(x: object, dest: Rank, *, tag: Integer = 0, comm: Comm = None) -> Request[None]:
    """Start :func:`send`, which :func:`wait` completes.

    The arguments are those of :func:`send`.

    Returns:
        A request, to be passed to :func:`wait` once. The result is None.

    """
    return start_call(send.call("isend", x, dest, tag=tag, comm=comm))


@overload
def isendrecv(
    sendbuf: object,
    recvbuf: ArrayLike,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Request[Array]: ...
@overload
def isendrecv(
    sendbuf: object,
    recvbuf: T,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Request[T]: ...
def isendrecv(
    sendbuf: object,
    recvbuf: ArrayLike | T,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Request[Array] | Request[T]:
    """Start :func:`sendrecv`, which :func:`wait` completes.

    The arguments are those of :func:`sendrecv`, but for ``status``.

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    return start_call(
        sendrecv.call(
            "isendrecv",
            sendbuf,
            recvbuf,
            source,
            dest,
            sendtag=sendtag,
            recvtag=recvtag,
            comm=comm,
        )
    )
