# Written by tools/forms.py (`make format`) from _internal/operations.
"""The operations with tokens, as in mpi4jax 0.3 to 0.7.

Functions that are new since then return a token only if one is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from ... import notoken
from ..._internal.arguments.types import (
    Array,
    ArrayLike,
    Comm,
    Counts,
    Integer,
    Op,
    Rank,
    RankTree,
    Status,
    T,
    Token,
)
from ..._internal.nonblocking.requests import Request
from ..._internal.older_api.token import LinearToken, and_token, check_token, checked_token
from ..._internal.operations._arguments import ANY_SOURCE, ANY_TAG
from ..._internal.operations.recv import with_linear_token as recv_with_token
from ..._internal.operations.send import with_linear_token as send_with_token

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
    "shared",
    "wait",
]
R = TypeVar("R")


@overload
def allgather(
    x: ArrayLike, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def allgather(
    x: T, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def allgather(
    x: ArrayLike | T, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Collect an array from every process, on every process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The arrays of all processes, stacked in rank order: shape ``(nproc, *x.shape)``.
        - The given token, or a new one.

    """
    token = checked_token("allgather", token)
    return notoken.allgather(x, comm=comm), token


@overload
def allgatherv(
    x: ArrayLike, counts: Counts, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def allgatherv(
    x: T, counts: Counts, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
@overload
def allgatherv(
    x: ArrayLike,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[tuple[Array, Array], Token]: ...
@overload
def allgatherv(
    x: T,
    counts: ArrayLike,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[tuple[T, Array], Token]: ...
def allgatherv(
    x: ArrayLike | T,
    counts: Counts | ArrayLike,
    *,
    capacity: Integer | None = None,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T | tuple[Array | T, Array], Token]:
    """Collect arrays of unequal length from all processes, on every process.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size
            ``counts[rank]``; the others, and the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process. With a
            capacity, this is the number of rows that this process sends, which the program
            may compute. ``x`` may have more rows.
        capacity (int): The number of rows of the result, if ``counts`` is computed by the
            program. If there would be more rows, this is an error on all processes, and
            nothing is sent.
        fill_value: The value of the remaining rows of the result, if it has a capacity: a
            number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The arrays of all processes, one after the other in rank order: shape
          ``(sum(counts), ...)``. With a capacity, a tuple of these, padded to the shape
          ``(capacity, ...)``, and the number of rows received from each process.
        - The given token, or a new one.

    """
    token = checked_token("allgatherv", token)
    function: Any = notoken.allgatherv
    return function(x, counts, capacity=capacity, fill_value=fill_value, comm=comm), token


@overload
def allreduce(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def allreduce(
    x: T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def allreduce(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Reduce an array over all processes, with the result on every process.

    .. note::

       Can be differentiated if ``op`` is :obj:`mpi4py.MPI.SUM`, ``PROD``, ``MAX`` or
       ``MIN``.

    Arguments:
        x: Array or scalar input, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The reduced array.
        - The given token, or a new one.

    """
    token = checked_token("allreduce", token)
    return notoken.allreduce(x, op, comm=comm), token


@overload
def alltoall(
    x: ArrayLike, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def alltoall(x: T, *, comm: Comm = None, token: Token | None = None) -> tuple[T, Token]: ...
def alltoall(
    x: ArrayLike | T, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Send a slice of an array to every process, and receive one from each.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received slices, stacked in rank order.
        - The given token, or a new one.

    """
    token = checked_token("alltoall", token)
    return notoken.alltoall(x, comm=comm), token


@overload
def alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]: ...
@overload
def alltoallv(
    x: ArrayLike,
    sendcounts: Counts | Array,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[tuple[Array, Array], Token]: ...
@overload
def alltoallv(
    x: T,
    sendcounts: Counts | Array,
    *,
    capacity: Integer,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[tuple[T, Array], Token]: ...
def alltoallv(
    x: ArrayLike | T,
    sendcounts: Counts | Array,
    recvcounts: Counts | None = None,
    *,
    capacity: Integer | None = None,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T | tuple[Array | T, Array], Token]:
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
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received parts, one after the other in rank order: shape ``(sum(recvcounts),
          ...)``. With a capacity, a tuple of these, padded to the shape ``(capacity,
          ...)``, and the number of rows received from each process.
        - The given token, or a new one.

    """
    token = checked_token("alltoallv", token)
    function: Any = notoken.alltoallv
    return function(
        x, sendcounts, recvcounts, capacity=capacity, fill_value=fill_value, comm=comm
    ), token


def barrier(*, comm: Comm = None, token: Token | None = None) -> Token:
    """Wait until every process has reached the barrier.

    Arguments:
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        The given token, or a new one.

    """
    token = checked_token("barrier", token)
    notoken.barrier(comm=comm)
    return token


@overload
def bcast(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def bcast(
    x: T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def bcast(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Send an array from one process to all others.

    .. warning::

        Unlike mpi4py's bcast, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input, or a tree of them. Data is only read on the root process.
            On the others this determines the shape and dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received array (``x`` itself on the root process).
        - The given token, or a new one.

    """
    token = checked_token("bcast", token)
    return notoken.bcast(x, root, comm=comm), token


def exchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Send and receive any number of messages at once.

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
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received tree (with the arrays of ``recvbuf`` itself where the source is
          :obj:`mpi4py.MPI.PROC_NULL`).
        - The given token, or a new one.

    """
    token = checked_token("exchange", token)
    return notoken.exchange(
        sendbuf, recvbuf, source, dest, sendtag=sendtag, recvtag=recvtag, comm=comm
    ), token


@overload
def exscan(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def exscan(
    x: T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def exscan(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Reduce an array over the processes before this one.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The reduction over the ranks below the rank of this process. On rank 0, where MPI
          leaves it undefined, the neutral element: 0 for :obj:`mpi4py.MPI.SUM`, 1 for
          ``PROD``, the lowest number for ``MAX``, and so on; 0 for user-made operators.
        - The given token, or a new one.

    """
    token = checked_token("exscan", token)
    return notoken.exscan(x, op, comm=comm), token


@overload
def gather(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def gather(
    x: T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def gather(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Collect an array from every process, on one process.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - On root, the arrays of all processes, stacked in rank order: shape ``(nproc,
          *x.shape)``. Elsewhere, ``x``.
        - The given token, or a new one.

    """
    token = checked_token("gather", token)
    return notoken.gather(x, root, comm=comm), token


@overload
def gatherv(
    x: ArrayLike,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def gatherv(
    x: T, counts: Counts, root: Integer, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def gatherv(
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Collect arrays of unequal length from all processes, on one process.

    .. warning::

       The shape of the result differs between the root process and the others.

    Arguments:
        x: Array input to send, or a tree of arrays. First axis must have size
            ``counts[rank]``; the others, and the dtype, must be the same on all processes.
        counts (Sequence[int]): The size of the first axis on every process.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - On root, the arrays of all processes, one after the other in rank order: shape
          ``(sum(counts), ...)``. Elsewhere, ``x``.
        - The given token, or a new one.

    """
    token = checked_token("gatherv", token)
    return notoken.gatherv(x, counts, root, comm=comm), token


@overload
def iallgather(
    x: ArrayLike, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iallgather(
    x: ArrayLike, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iallgather(x: T, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def iallgather(x: T, *, comm: Comm = None, token: Token) -> tuple[Request[T], Token]: ...
def iallgather(
    x: ArrayLike | T, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iallgather`, with a token or without."""
    check_token("iallgather", token)
    return and_token(notoken.iallgather(x, comm=comm), token)


@overload
def iallgatherv(
    x: ArrayLike, counts: Counts, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iallgatherv(
    x: ArrayLike, counts: Counts, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iallgatherv(
    x: T, counts: Counts, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def iallgatherv(
    x: T, counts: Counts, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def iallgatherv(
    x: ArrayLike | T, counts: Counts, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iallgatherv`, with a token or without."""
    check_token("iallgatherv", token)
    return and_token(notoken.iallgatherv(x, counts, comm=comm), token)


@overload
def iallreduce(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iallreduce(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iallreduce(x: T, op: Op, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def iallreduce(
    x: T, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def iallreduce(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iallreduce`, with a token or without."""
    check_token("iallreduce", token)
    return and_token(notoken.iallreduce(x, op, comm=comm), token)


@overload
def ialltoall(x: ArrayLike, *, comm: Comm = None, token: None = None) -> Request[Array]: ...
@overload
def ialltoall(
    x: ArrayLike, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ialltoall(x: T, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def ialltoall(x: T, *, comm: Comm = None, token: Token) -> tuple[Request[T], Token]: ...
def ialltoall(
    x: ArrayLike | T, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ialltoall`, with a token or without."""
    check_token("ialltoall", token)
    return and_token(notoken.ialltoall(x, comm=comm), token)


@overload
def ialltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    comm: Comm = None,
    token: None = None,
) -> Request[Array]: ...
@overload
def ialltoallv(
    x: ArrayLike, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ialltoallv(
    x: T, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def ialltoallv(
    x: T, sendcounts: Counts, recvcounts: Counts, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ialltoallv(
    x: ArrayLike | T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ialltoallv`, with a token or without."""
    check_token("ialltoallv", token)
    return and_token(notoken.ialltoallv(x, sendcounts, recvcounts, comm=comm), token)


@overload
def ibarrier(*, comm: Comm = None, token: None = None) -> Request[None]: ...
@overload
def ibarrier(*, comm: Comm = None, token: Token) -> tuple[Request[None], Token]: ...
def ibarrier(
    *, comm: Comm = None, token: Token | None = None
) -> Request[None] | tuple[Request[None], Token]:
    """Call :func:`mpi4jax.notoken.ibarrier`, with a token or without."""
    check_token("ibarrier", token)
    return and_token(notoken.ibarrier(comm=comm), token)


@overload
def ibcast(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def ibcast(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ibcast(x: T, root: Rank, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def ibcast(
    x: T, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ibcast(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ibcast`, with a token or without."""
    check_token("ibcast", token)
    return and_token(notoken.ibcast(x, root, comm=comm), token)


@overload
def iexchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
    token: None = None,
) -> Request[T]: ...
@overload
def iexchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
    token: Token,
) -> tuple[Request[T], Token]: ...
def iexchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iexchange`, with a token or without."""
    check_token("iexchange", token)
    return and_token(
        notoken.iexchange(
            sendbuf, recvbuf, source, dest, sendtag=sendtag, recvtag=recvtag, comm=comm
        ),
        token,
    )


@overload
def iexscan(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iexscan(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iexscan(x: T, op: Op, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def iexscan(
    x: T, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def iexscan(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iexscan`, with a token or without."""
    check_token("iexscan", token)
    return and_token(notoken.iexscan(x, op, comm=comm), token)


@overload
def igather(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def igather(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def igather(x: T, root: Rank, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def igather(
    x: T, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def igather(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.igather`, with a token or without."""
    check_token("igather", token)
    return and_token(notoken.igather(x, root, comm=comm), token)


@overload
def igatherv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def igatherv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def igatherv(
    x: T, counts: Counts, root: Integer, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def igatherv(
    x: T, counts: Counts, root: Integer, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def igatherv(
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.igatherv`, with a token or without."""
    check_token("igatherv", token)
    return and_token(notoken.igatherv(x, counts, root, comm=comm), token)


@overload
def ineighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def ineighbor_allgather(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ineighbor_allgather(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def ineighbor_allgather(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ineighbor_allgather(
    x: ArrayLike | T,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ineighbor_allgather`, with a token or without."""
    check_token("ineighbor_allgather", token)
    return and_token(
        notoken.ineighbor_allgather(x, fill_value=fill_value, comm=comm), token
    )


@overload
def ineighbor_allgatherv(
    x: ArrayLike,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: None = None,
) -> Request[Array]: ...
@overload
def ineighbor_allgatherv(
    x: ArrayLike,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token,
) -> tuple[Request[Array], Token]: ...
@overload
def ineighbor_allgatherv(
    x: T,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: None = None,
) -> Request[T]: ...
@overload
def ineighbor_allgatherv(
    x: T, counts: Counts, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ineighbor_allgatherv(
    x: ArrayLike | T,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ineighbor_allgatherv`, with a token or without."""
    check_token("ineighbor_allgatherv", token)
    return and_token(
        notoken.ineighbor_allgatherv(x, counts, fill_value=fill_value, comm=comm), token
    )


@overload
def ineighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def ineighbor_alltoall(
    x: ArrayLike, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ineighbor_alltoall(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def ineighbor_alltoall(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ineighbor_alltoall(
    x: ArrayLike | T,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ineighbor_alltoall`, with a token or without."""
    check_token("ineighbor_alltoall", token)
    return and_token(notoken.ineighbor_alltoall(x, fill_value=fill_value, comm=comm), token)


@overload
def ineighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: None = None,
) -> Request[Array]: ...
@overload
def ineighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token,
) -> tuple[Request[Array], Token]: ...
@overload
def ineighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: None = None,
) -> Request[T]: ...
@overload
def ineighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token,
) -> tuple[Request[T], Token]: ...
def ineighbor_alltoallv(
    x: ArrayLike | T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ineighbor_alltoallv`, with a token or without."""
    check_token("ineighbor_alltoallv", token)
    return and_token(
        notoken.ineighbor_alltoallv(
            x, sendcounts, recvcounts, fill_value=fill_value, comm=comm
        ),
        token,
    )


@overload
def irecv(
    x: ArrayLike,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    token: None = None,
) -> Request[Array]: ...
@overload
def irecv(
    x: ArrayLike,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    token: Token,
) -> tuple[Request[Array], Token]: ...
@overload
def irecv(
    x: T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    token: None = None,
) -> Request[T]: ...
@overload
def irecv(
    x: T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    token: Token,
) -> tuple[Request[T], Token]: ...
def irecv(
    x: ArrayLike | T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.irecv`, with a token or without."""
    check_token("irecv", token)
    return and_token(notoken.irecv(x, source, tag=tag, comm=comm), token)


@overload
def ireduce(
    x: ArrayLike, op: Op, root: Rank, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def ireduce(
    x: ArrayLike, op: Op, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ireduce(
    x: T, op: Op, root: Rank, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def ireduce(
    x: T, op: Op, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ireduce(
    x: ArrayLike | T, op: Op, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ireduce`, with a token or without."""
    check_token("ireduce", token)
    return and_token(notoken.ireduce(x, op, root, comm=comm), token)


@overload
def ireduce_scatter(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def ireduce_scatter(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ireduce_scatter(
    x: T, op: Op, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def ireduce_scatter(
    x: T, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ireduce_scatter(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ireduce_scatter`, with a token or without."""
    check_token("ireduce_scatter", token)
    return and_token(notoken.ireduce_scatter(x, op, comm=comm), token)


@overload
def ireduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def ireduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def ireduce_scatterv(
    x: T, op: Op, counts: Counts, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def ireduce_scatterv(
    x: T, op: Op, counts: Counts, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def ireduce_scatterv(
    x: ArrayLike | T,
    op: Op,
    counts: Counts,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.ireduce_scatterv`, with a token or without."""
    check_token("ireduce_scatterv", token)
    return and_token(notoken.ireduce_scatterv(x, op, counts, comm=comm), token)


@overload
def iscan(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iscan(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iscan(x: T, op: Op, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def iscan(x: T, op: Op, *, comm: Comm = None, token: Token) -> tuple[Request[T], Token]: ...
def iscan(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iscan`, with a token or without."""
    check_token("iscan", token)
    return and_token(notoken.iscan(x, op, comm=comm), token)


@overload
def iscatter(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iscatter(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iscatter(x: T, root: Rank, *, comm: Comm = None, token: None = None) -> Request[T]: ...
@overload
def iscatter(
    x: T, root: Rank, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def iscatter(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iscatter`, with a token or without."""
    check_token("iscatter", token)
    return and_token(notoken.iscatter(x, root, comm=comm), token)


@overload
def iscatterv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None, token: None = None
) -> Request[Array]: ...
@overload
def iscatterv(
    x: ArrayLike, counts: Counts, root: Integer, *, comm: Comm = None, token: Token
) -> tuple[Request[Array], Token]: ...
@overload
def iscatterv(
    x: T, counts: Counts, root: Integer, *, comm: Comm = None, token: None = None
) -> Request[T]: ...
@overload
def iscatterv(
    x: T, counts: Counts, root: Integer, *, comm: Comm = None, token: Token
) -> tuple[Request[T], Token]: ...
def iscatterv(
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.iscatterv`, with a token or without."""
    check_token("iscatterv", token)
    return and_token(notoken.iscatterv(x, counts, root, comm=comm), token)


@overload
def isend(
    x: object, dest: Rank, *, tag: Integer = 0, comm: Comm = None, token: None = None
) -> Request[None]: ...
@overload
def isend(
    x: object, dest: Rank, *, tag: Integer = 0, comm: Comm = None, token: Token
) -> tuple[Request[None], Token]: ...
def isend(
    x: object,
    dest: Rank,
    *,
    tag: Integer = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[None] | tuple[Request[None], Token]:
    """Call :func:`mpi4jax.notoken.isend`, with a token or without."""
    check_token("isend", token)
    return and_token(notoken.isend(x, dest, tag=tag, comm=comm), token)


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
    token: None = None,
) -> Request[Array]: ...
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
    token: Token,
) -> tuple[Request[Array], Token]: ...
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
    token: None = None,
) -> Request[T]: ...
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
    token: Token,
) -> tuple[Request[T], Token]: ...
def isendrecv(
    sendbuf: object,
    recvbuf: ArrayLike | T,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    token: Token | None = None,
) -> Request[Array] | tuple[Request[Array], Token] | Request[T] | tuple[Request[T], Token]:
    """Call :func:`mpi4jax.notoken.isendrecv`, with a token or without."""
    check_token("isendrecv", token)
    return and_token(
        notoken.isendrecv(
            sendbuf, recvbuf, source, dest, sendtag=sendtag, recvtag=recvtag, comm=comm
        ),
        token,
    )


@overload
def neighbor_allgather(
    x: ArrayLike,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def neighbor_allgather(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def neighbor_allgather(
    x: ArrayLike | T,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Send an array to every neighbor, and receive an array from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    .. warning::

       ``x`` must have the same shape and dtype on all processes.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like ``x``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The arrays of the neighbors that send to this process, with shape ``(indegree,
          *x.shape)``.
        - The given token, or a new one.

    """
    token = checked_token("neighbor_allgather", token)
    return notoken.neighbor_allgather(x, fill_value=fill_value, comm=comm), token


@overload
def neighbor_allgatherv(
    x: ArrayLike,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def neighbor_allgatherv(
    x: T,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]: ...
def neighbor_allgatherv(
    x: ArrayLike | T,
    counts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Send an array to every neighbor, and receive arrays of any sizes from all.

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
            edge of a grid: a number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The rows of the neighbors, one after the other: shape ``(sum(counts), ...)``.
        - The given token, or a new one.

    """
    token = checked_token("neighbor_allgatherv", token)
    return notoken.neighbor_allgatherv(x, counts, fill_value=fill_value, comm=comm), token


@overload
def neighbor_alltoall(
    x: ArrayLike,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def neighbor_alltoall(
    x: T, *, fill_value: ArrayLike = 0, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def neighbor_alltoall(
    x: ArrayLike | T,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Send a slice of an array to every neighbor, and receive one from each.

    The topology of the communicator defines the neighbors, in MPI's order. On a Cartesian
    grid these are, for each axis, the previous and the next process. In a graph, a process
    is a neighbor once for each edge.

    Arguments:
        x: Array input to send, or a tree of arrays: a slice for each neighbor that this
            process sends to, with shape ``(outdegree, ...)``. All slices have the same
            shape, on all processes.
        fill_value: The value of the blocks that no process sends, at a non-periodic
            edge of a grid: a number, or an array like a slice.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The slices received from the neighbors that send to this process, with shape
          ``(indegree, ...)``.
        - The given token, or a new one.

    """
    token = checked_token("neighbor_alltoall", token)
    return notoken.neighbor_alltoall(x, fill_value=fill_value, comm=comm), token


@overload
def neighbor_alltoallv(
    x: ArrayLike,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def neighbor_alltoallv(
    x: T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]: ...
def neighbor_alltoallv(
    x: ArrayLike | T,
    sendcounts: Counts,
    recvcounts: Counts,
    *,
    fill_value: ArrayLike = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Send a part of an array to every neighbor, and receive one from each.

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
            edge of a grid: a number, or an array like a row.
        comm (mpi4py.MPI.Comm): The MPI communicator to use, with a Cartesian, graph or
            distributed-graph topology.
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received parts, one after the other: shape ``(sum(recvcounts), ...)``.
        - The given token, or a new one.

    """
    token = checked_token("neighbor_alltoallv", token)
    return notoken.neighbor_alltoallv(
        x, sendcounts, recvcounts, fill_value=fill_value, comm=comm
    ), token


@overload
def ordering_barrier(tree: T, *, token: None = None) -> T: ...
@overload
def ordering_barrier(tree: T, *, token: Token) -> tuple[T, Token]: ...
def ordering_barrier(tree: T, *, token: Token | None = None) -> T | tuple[T, Token]:
    """Call :func:`mpi4jax.notoken.ordering_barrier`, with a token or without."""
    check_token("ordering_barrier", token)
    return and_token(notoken.ordering_barrier(tree), token)


@overload
def overlap(
    communicate: Callable[[], T], *, during: Callable[[], R], token: None = None
) -> tuple[T, R]: ...
@overload
def overlap(
    communicate: Callable[[], T], *, during: Callable[[], R], token: Token
) -> tuple[tuple[T, R], Token]: ...
def overlap(
    communicate: Callable[[], T], *, during: Callable[[], R], token: Token | None = None
) -> tuple[T, R] | tuple[tuple[T, R], Token]:
    """Call :func:`mpi4jax.notoken.overlap`, with a token or without."""
    check_token("overlap", token)
    return and_token(notoken.overlap(communicate, during=during), token)


@overload
def recv(
    x: ArrayLike,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def recv(
    x: T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: Token | None = None,
) -> tuple[T, Token]: ...
def recv(
    x: ArrayLike | T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Receive an array from another process.

    .. warning::

        Unlike mpi4py's recv, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input with the correct shape and dtype, or a tree of them. This
           can contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        status (mpi4py.MPI.Status): Filled when the message has been received.
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received array (``x`` itself if ``source`` is :obj:`mpi4py.MPI.PROC_NULL`).
        - The given token, or a new one.

    """
    token = checked_token("recv", token)
    if type(token) is LinearToken:
        return recv_with_token(token, x, source, tag=tag, comm=comm, status=status)
    return notoken.recv(x, source, tag=tag, comm=comm, status=status), token


@overload
def reduce(
    x: ArrayLike, op: Op, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def reduce(
    x: T, op: Op, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def reduce(
    x: ArrayLike | T, op: Op, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Reduce an array over all processes, with the result on one process.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The reduced array on root, ``x`` elsewhere.
        - The given token, or a new one.

    """
    token = checked_token("reduce", token)
    return notoken.reduce(x, op, root, comm=comm), token


@overload
def reduce_scatter(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def reduce_scatter(
    x: T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def reduce_scatter(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Reduce an array over all processes, with a slice of the result on each process.

    This is ``MPI_Reduce_scatter_block``: all slices have one shape.

    Arguments:
        x: Array input, or a tree of arrays. First axis must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The reduction of ``x[rank]`` over all processes: shape ``x.shape[1:]``.
        - The given token, or a new one.

    """
    token = checked_token("reduce_scatter", token)
    return notoken.reduce_scatter(x, op, comm=comm), token


@overload
def reduce_scatterv(
    x: ArrayLike, op: Op, counts: Counts, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def reduce_scatterv(
    x: T, op: Op, counts: Counts, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def reduce_scatterv(
    x: ArrayLike | T,
    op: Op,
    counts: Counts,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Reduce an array over all processes, with some rows of the result on each process.

    This is ``MPI_Reduce_scatter``: the number of rows may differ from process to process.

    Arguments:
        x: Array input, or a tree of arrays: the rows for all processes, one after the other
            in rank order, with shape ``(sum(counts), ...)``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        counts (Sequence[int]): The number of rows for each process. It must be the same on
            all processes.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The rows of this process, reduced over all processes: shape ``(counts[rank],
          ...)``.
        - The given token, or a new one.

    """
    token = checked_token("reduce_scatterv", token)
    return notoken.reduce_scatterv(x, op, counts, comm=comm), token


@overload
def scan(
    x: ArrayLike, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def scan(
    x: T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def scan(
    x: ArrayLike | T, op: Op, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Reduce an array over this process and those before it.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The reduction over the ranks from 0 to the rank of this process.
        - The given token, or a new one.

    """
    token = checked_token("scan", token)
    return notoken.scan(x, op, comm=comm), token


@overload
def scatter(
    x: ArrayLike, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array, Token]: ...
@overload
def scatter(
    x: T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def scatter(
    x: ArrayLike | T, root: Rank, *, comm: Comm = None, token: Token | None = None
) -> tuple[Array | T, Token]:
    """Send each process its slice of an array of one process.

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
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received slice.
        - The given token, or a new one.

    """
    token = checked_token("scatter", token)
    return notoken.scatter(x, root, comm=comm), token


@overload
def scatterv(
    x: ArrayLike,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def scatterv(
    x: T, counts: Counts, root: Integer, *, comm: Comm = None, token: Token | None = None
) -> tuple[T, Token]: ...
def scatterv(
    x: ArrayLike | T,
    counts: Counts,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Send each process its part of an array of one process.

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
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received part.
        - The given token, or a new one.

    """
    token = checked_token("scatterv", token)
    return notoken.scatterv(x, counts, root, comm=comm), token


def send(
    x: object,
    dest: Rank,
    *,
    tag: Integer = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Token:
    """Send an array to another process.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        The given token, or a new one.

    """
    token = checked_token("send", token)
    if type(token) is LinearToken:
        return send_with_token(token, x, dest, tag=tag, comm=comm)
    notoken.send(x, dest, tag=tag, comm=comm)
    return token


@overload
def sendrecv(
    sendbuf: object,
    recvbuf: ArrayLike,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: Token | None = None,
) -> tuple[Array, Token]: ...
@overload
def sendrecv(
    sendbuf: object,
    recvbuf: T,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: Token | None = None,
) -> tuple[T, Token]: ...
def sendrecv(
    sendbuf: object,
    recvbuf: ArrayLike | T,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: Token | None = None,
) -> tuple[Array | T, Token]:
    """Send an array to one process while receiving another from a process.

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
        status (mpi4py.MPI.Status): Filled when the message has been received.
        token (Token): Accepted and returned, for programs that pass it from call to call.
            Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received array (``recvbuf`` itself if ``source`` is
          :obj:`mpi4py.MPI.PROC_NULL`).
        - The given token, or a new one.

    """
    token = checked_token("sendrecv", token)
    return notoken.sendrecv(
        sendbuf,
        recvbuf,
        source,
        dest,
        sendtag=sendtag,
        recvtag=recvtag,
        comm=comm,
        status=status,
    ), token


@overload
def shared(x: T, *, comm: Comm = None, token: None = None) -> T: ...
@overload
def shared(x: T, *, comm: Comm = None, token: Token) -> tuple[T, Token]: ...
def shared(x: T, *, comm: Comm = None, token: Token | None = None) -> T | tuple[T, Token]:
    """Call :func:`mpi4jax.notoken.shared`, with a token or without."""
    check_token("shared", token)
    return and_token(notoken.shared(x, comm=comm), token)


@overload
def wait(request: Request[T], *, token: None = None) -> T: ...
@overload
def wait(request: Request[T], *, token: Token) -> tuple[T, Token]: ...
def wait(request: Request[T], *, token: Token | None = None) -> T | tuple[T, Token]:
    """Call :func:`mpi4jax.notoken.wait`, with a token or without."""
    check_token("wait", token)
    return and_token(notoken.wait(request), token)


# It takes its names from here.
from . import tree as tree  # noqa: E402
