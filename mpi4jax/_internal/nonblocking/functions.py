"""The operations that have a nonblocking form (MPI-4.1 §3.7 and §6.12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.checks import array
from ..arguments.dtypes import avals_of
from ..arguments.types import Array, ArrayLike, Comm, Integer, Op
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..operations._arguments import (
    ANY_TAG,
    check_first_axis,
    dest_rank,
    recv_tag,
    root_rank,
    send_tag,
    source_rank,
)
from ..operations._messages import NO_MESSAGES, RECEIVING, SENDING, Messages, messages_of
from .requests import Request, collective_flight, exchange_flight, start

T = TypeVar("T")

_LEAF = jax.tree_util.tree_structure(0)


def _arrays(leaves: Sequence[Any]) -> list[Array]:
    """Arrays of JAX. It takes its time for those that it has already."""
    return [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in leaves]


def _collective(
    name: str, x: Any, communicator: Communicator, **params: int
) -> Request[Array]:
    arrays = _arrays([array(name, "x", x)])
    (aval,) = avals_of(arrays)
    return start(collective_flight(name, aval, communicator, **params), arrays, _LEAF)


def iallgather(x: ArrayLike, *, comm: Comm = None) -> Request[Array]:
    """Start collecting an array from every process: :func:`allgather`.

    Arguments:
        x: Array or scalar input to send.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("iallgather", comm)
    return _collective("iallgather", x, communicator, shared=True)


def iallreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]:
    """Start reducing an array over all processes: :func:`allreduce`.

    Arguments:
        x: Array or scalar input.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("iallreduce", comm)
    number = handles.operator_number("iallreduce", op)
    return _collective("iallreduce", x, communicator, op_number=number)


def ialltoall(x: ArrayLike, *, comm: Comm = None) -> Request[Array]:
    """Start exchanging slices of an array between all processes: :func:`alltoall`.

    Arguments:
        x: Array input to send. The first axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("ialltoall", comm)
    check_first_axis("ialltoall", x, communicator)
    return _collective("ialltoall", x, communicator)


def ibcast(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Request[Array]:
    """Start sending an array from one process to all others: :func:`bcast`.

    Arguments:
        x: Array or scalar input. On the other processes this determines the shape and
            dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("ibcast", comm)
    rank = root_rank("ibcast", root, communicator)
    return _collective("ibcast", x, communicator, root=rank, shared=True)


def _exchange(
    name: str,
    communicator: Communicator,
    sendbuf: Tree,
    recvbuf: Tree,
    sent: Messages,
    received: Messages,
) -> Request[Any]:
    leaves, room = _arrays(sendbuf.arrays(name)), _arrays(recvbuf.arrays(name))
    types = tuple(avals_of(leaves)), tuple(avals_of(room))
    flight = exchange_flight(name, communicator, *types, sent, received)
    return start(flight, leaves, recvbuf.structure, room)


#: A tree without arrays, which is None.
_NOTHING = Tree("x", None)


def _leaf(function: str, argument: str, x: Any) -> Tree:
    return Tree(argument, array(function, argument, x))


def isend(
    x: ArrayLike, dest: Integer, *, tag: Integer = 0, comm: Comm = None
) -> Request[None]:
    """Start sending an array to another process: :func:`send`.

    Arguments:
        x: Array or scalar input to send.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once. The result is None.

    """
    communicator = handles.communicator("isend", comm)
    sent = Messages.single(
        dest_rank("isend", "dest", dest, communicator),
        send_tag("isend", "tag", tag, communicator),
    )
    leaf = _leaf("isend", "x", x)
    return _exchange("isend", communicator, leaf, _NOTHING, sent, NO_MESSAGES)


def irecv(
    x: ArrayLike, source: Integer, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> Request[Array]:
    """Start receiving an array from another process: :func:`recv`.

    Arguments:
        x: Array or scalar input with the correct shape and dtype. This can contain
            arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("irecv", comm)
    received = Messages.single(
        source_rank("irecv", "source", source, communicator),
        recv_tag("irecv", "tag", tag, communicator),
    )
    leaf = _leaf("irecv", "x", x)
    return _exchange("irecv", communicator, _NOTHING, leaf, NO_MESSAGES, received)


def isendrecv(
    sendbuf: ArrayLike,
    recvbuf: ArrayLike,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = 0,
    comm: Comm = None,
) -> Request[Array]:
    """Start sending an array to one process and receiving another from a process.

    Arguments:
        sendbuf: Array or scalar input to send.
        recvbuf: Array or scalar input with the correct shape and dtype. This can
           contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        dest (int): Rank of the destination MPI process.
        sendtag (int): Tag of this message for sending.
        recvtag (int): Tag of this message for receiving.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("isendrecv", comm)
    sent = Messages.single(
        dest_rank("isendrecv", "dest", dest, communicator),
        send_tag("isendrecv", "sendtag", sendtag, communicator),
    )
    received = Messages.single(
        source_rank("isendrecv", "source", source, communicator),
        recv_tag("isendrecv", "recvtag", recvtag, communicator),
    )
    given = _leaf("isendrecv", "sendbuf", sendbuf)
    leaf = _leaf("isendrecv", "recvbuf", recvbuf)
    return _exchange("isendrecv", communicator, given, leaf, sent, received)


def iexchange(
    sendbuf: object,
    recvbuf: T,
    source: object,
    dest: object,
    *,
    sendtag: object = 0,
    recvtag: object = 0,
    comm: Comm = None,
) -> Request[T]:
    """Start sending and receiving any number of messages: :func:`exchange`.

    Arguments:
        sendbuf: A tree of arrays or scalars to send, for example a list.
        recvbuf: A tree of arrays or scalars with the structure, shapes and dtypes of what
            is received. This can contain arbitrary data and will not be overwritten.
        source: The ranks that send the messages: a tree that is a prefix of the tree
            ``recvbuf``, or one rank.
        dest: The ranks that receive the messages, in the same way for ``sendbuf``.
        sendtag: A tag for all messages sent, or a tree of tags like ``dest``.
        recvtag: A tag for all messages received, or a tree of tags like ``source``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        A request, to be passed to :func:`wait` once.

    """
    communicator = handles.communicator("iexchange", comm)
    given, room = Tree("sendbuf", sendbuf), Tree("recvbuf", recvbuf)
    sent = messages_of("iexchange", SENDING, given, dest, sendtag, communicator)
    received = messages_of("iexchange", RECEIVING, room, source, recvtag, communicator)
    return _exchange("iexchange", communicator, given, room, sent, received)
