"""The operations that have a nonblocking form (MPI-4.1 §3.7 and §6.12)."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from . import handles
from .annotations import Array, ArrayLike, Comm, Integer, Op
from .jax_compat import ShapedArray
from .nonblocking import Flight, Request, start, types_of
from .operations._arguments import ANY_TAG, root_rank
from .operations.exchange import Messages, messages_of
from .packing import Tree
from .validation import array, integer

T = TypeVar("T")

_LEAF = jax.tree_util.tree_structure(0)


def _collective(
    name: str,
    x: Any,
    comm: handles.Communicator,
    result: tuple[int, ...] | None = None,
    **params: int,
) -> Request[Array]:
    x = array(name, "x", x)
    sent = types_of([x])
    received = sent if result is None else (ShapedArray(result, sent[0].dtype),)
    flight = Flight(name, comm, sent, received, tuple(params.items()))
    return start(flight, [x], _LEAF)


def iallgather(x: ArrayLike, *, comm: Comm = None) -> Request[Array]:
    """Start to collect an array from every process: :func:`allgather`.

    Arguments:
        x: Array or scalar input to send.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once.

    """
    communicator = handles.communicator("iallgather", comm)
    shape = (communicator.size, *jnp.shape(x))
    return _collective("iallgather", x, communicator, shape, shared=True)


def iallreduce(x: ArrayLike, op: Op, *, comm: Comm = None) -> Request[Array]:
    """Start to reduce an array over all processes: :func:`allreduce`.

    Arguments:
        x: Array or scalar input.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once.

    """
    communicator = handles.communicator("iallreduce", comm)
    number = handles.operator_number("iallreduce", op)
    return _collective("iallreduce", x, communicator, op_number=number)


def ialltoall(x: ArrayLike, *, comm: Comm = None) -> Request[Array]:
    """Start to exchange slices of an array between all processes: :func:`alltoall`.

    Arguments:
        x: Array input to send. The first axis must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once.

    """
    communicator = handles.communicator("ialltoall", comm)
    if jnp.shape(x)[:1] != (communicator.size,):
        raise ValueError("Alltoall input must have shape (nproc, ...)")
    return _collective("ialltoall", x, communicator)


def ibcast(x: ArrayLike, root: Integer, *, comm: Comm = None) -> Request[Array]:
    """Start to send an array from one process to all others: :func:`bcast`.

    Arguments:
        x: Array or scalar input. On the other processes this determines the shape and
            dtype of the result.
        root (int): The process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once.

    """
    communicator = handles.communicator("ibcast", comm)
    rank = root_rank("ibcast", root, communicator)
    return _collective("ibcast", x, communicator, root=rank, shared=True)


def _exchange(
    name: str, sendbuf: Any, recvbuf: Any, sent: Messages, received: Messages, comm: Any
) -> Request[Any]:
    communicator = handles.communicator(name, comm)
    leaves, room = sendbuf.arrays(name), recvbuf.arrays(name)
    params = (("sent", sent), ("received", received))
    flight = Flight("iexchange", communicator, types_of(leaves), types_of(room), params)
    return start(flight, leaves, recvbuf.structure, room)


def _message(function: str, argument: str, rank: Any, tag_argument: str, tag: Any) -> Any:
    rank, tag = integer(function, argument, rank), integer(function, tag_argument, tag)
    return Messages((rank,), (tag,), (1,))


_NOTHING = Tree("x", ())
_NO_MESSAGES = Messages((), (), ())


def _leaf(function: str, argument: str, x: Any) -> Tree:
    return Tree(argument, array(function, argument, x))


def isend(
    x: ArrayLike, dest: Integer, *, tag: Integer = 0, comm: Comm = None
) -> Request[None]:
    """Start to send an array to another process: :func:`send`.

    Arguments:
        x: Array or scalar input to send.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once. That gives None.

    """
    sent = _message("isend", "dest", dest, "tag", tag)
    request = _exchange("isend", _leaf("isend", "x", x), _NONE, sent, _NO_MESSAGES, comm)
    return request


_NONE = Tree("x", None)


def irecv(
    x: ArrayLike, source: Integer, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> Request[Array]:
    """Start to receive an array from another process: :func:`recv`.

    Arguments:
        x: Array or scalar input with the correct shape and dtype. This can contain
            arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once.

    """
    received = _message("irecv", "source", source, "tag", tag)
    leaf = _leaf("irecv", "x", x)
    return _exchange("irecv", _NOTHING, leaf, _NO_MESSAGES, received, comm)


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
    """Start to send an array to one process, and to receive another from a process.

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
        What :func:`wait` takes, once.

    """
    sent = _message("isendrecv", "dest", dest, "sendtag", sendtag)
    received = _message("isendrecv", "source", source, "recvtag", recvtag)
    given = _leaf("isendrecv", "sendbuf", sendbuf)
    leaf = _leaf("isendrecv", "recvbuf", recvbuf)
    return _exchange("isendrecv", given, leaf, sent, received, comm)


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
    """Start to send and receive any number of messages: :func:`exchange`.

    Arguments:
        sendbuf: A tree of arrays or scalars to send, for example a list.
        recvbuf: A tree of arrays or scalars with the structure, shapes and dtypes of what
            is received. This can contain arbitrary data and will not be overwritten.
        source: Where the messages come from: a tree of ranks with which the tree
            ``recvbuf`` begins, or one rank.
        dest: Where the messages go, in the same way for ``sendbuf``.
        sendtag: A tag for all messages sent, or a tree of tags like ``dest``.
        recvtag: A tag for all messages received, or a tree of tags like ``source``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        What :func:`wait` takes, once.

    """
    given, room = Tree("sendbuf", sendbuf), Tree("recvbuf", recvbuf)
    sent = messages_of("iexchange", given, ("dest", dest), ("sendtag", sendtag))
    received = messages_of("iexchange", room, ("source", source), ("recvtag", recvtag))
    return _exchange("iexchange", given, room, sent, received, comm)
