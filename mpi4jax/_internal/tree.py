"""The operations on whole trees of arrays, such as the parameters of a model.

Each is the operation of the same name, called with a :class:`Tree` in place of an array:
arguments, derivatives and all else are the operation's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .arguments.types import Comm, Integer, Op
from .forms.token import without_tokens
from .layout.packing import Tree
from .operations._arguments import ANY_SOURCE, ANY_TAG
from .operations.allgather import allgather as allgather_array
from .operations.allreduce import allreduce as allreduce_array
from .operations.alltoall import alltoall as alltoall_array
from .operations.bcast import bcast as bcast_array
from .operations.gather import gather as gather_array
from .operations.recv import recv as recv_array
from .operations.reduce import reduce as reduce_array
from .operations.reduce_scatter import reduce_scatter as reduce_scatter_array
from .operations.scan import scan as scan_array
from .operations.scatter import scatter as scatter_array
from .operations.send import send as send_array
from .operations.sendrecv import sendrecv as sendrecv_array

T = TypeVar("T")


def _call(function: Callable[..., Any], tree: Any, *args: Any, **kwargs: Any) -> Any:
    return function(Tree("tree", tree), *args, **kwargs)


@without_tokens
def allgather(tree: T, *, comm: Comm = None) -> T:
    """Collect a tree from every process, on every process.

    Arguments:
        tree: A tree of arrays or scalars.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree, with the leaves of all processes stacked in rank order: shape
        ``(nproc, *leaf.shape)``.

    """
    return _call(allgather_array, tree, comm=comm)


@without_tokens
def allreduce(tree: T, op: Op, *, comm: Comm = None) -> T:
    """Reduce a tree over all processes, with the result on every process.

    Arguments:
        tree: A tree of arrays or scalars.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree of the reduced arrays.

    """
    return _call(allreduce_array, tree, op, comm=comm)


@without_tokens
def alltoall(tree: T, *, comm: Comm = None) -> T:
    """Exchange slices of the leaves of a tree between all processes.

    Arguments:
        tree: A tree of arrays, the first axis of which must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree, with the received slices stacked in rank order.

    """
    return _call(alltoall_array, tree, comm=comm)


@without_tokens
def bcast(tree: T, root: Integer, *, comm: Comm = None) -> T:
    """Send a tree from one process to all others.

    Arguments:
        tree: A tree of arrays or scalars. Data is only read on the root process. On the
            others this determines the structure, shapes and dtypes of the result.
        root (int): Rank of the process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received tree (the arrays of ``tree`` itself on the root process).

    """
    return _call(bcast_array, tree, root, comm=comm)


@without_tokens
def gather(tree: T, root: Integer, *, comm: Comm = None) -> T:
    """Collect a tree from every process, on one process.

    Arguments:
        tree: A tree of arrays or scalars.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        On root as :func:`allgather`, the arrays of ``tree`` elsewhere.

    """
    return _call(gather_array, tree, root, comm=comm)


@without_tokens
def recv(
    tree: T, source: Integer = ANY_SOURCE, *, tag: Integer = ANY_TAG, comm: Comm = None
) -> T:
    """Receive a tree from another process, which sends it with :func:`send`.

    Arguments:
        tree: A tree of arrays or scalars with the structure, shapes and dtypes of what is
            received. This can contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of its messages.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received tree.

    """
    return _call(recv_array, tree, source, tag=tag, comm=comm)


@without_tokens
def reduce(tree: T, op: Op, root: Integer, *, comm: Comm = None) -> T:
    """Reduce a tree over all processes, with the result on one process.

    Arguments:
        tree: A tree of arrays or scalars.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree of the reduced arrays on root, the arrays of ``tree`` elsewhere.

    """
    return _call(reduce_array, tree, op, root, comm=comm)


@without_tokens
def reduce_scatter(tree: T, op: Op, *, comm: Comm = None) -> T:
    """Reduce a tree over all processes, with a slice of each leaf on each process.

    Arguments:
        tree: A tree of arrays, the first axis of which must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree of the reductions of ``leaf[rank]``: shape ``leaf.shape[1:]``.

    """
    return _call(reduce_scatter_array, tree, op, comm=comm)


@without_tokens
def scan(tree: T, op: Op, *, comm: Comm = None) -> T:
    """Reduce a tree over this process and those before it.

    Arguments:
        tree: A tree of arrays or scalars.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree of the reductions over the ranks from 0 to that of this process.

    """
    return _call(scan_array, tree, op, comm=comm)


@without_tokens
def scatter(tree: T, root: Integer, *, comm: Comm = None) -> T:
    """Send each process its slice of the leaves of a tree of one process.

    Arguments:
        tree: On root, a tree of arrays of shape ``(nproc, ...)``. Elsewhere, a tree of
            arrays with the shapes and dtypes of the result, whose data is not read.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The tree of the received slices.

    """
    return _call(scatter_array, tree, root, comm=comm)


@without_tokens
def send(tree: T, dest: Integer, *, tag: Integer = 0, comm: Comm = None) -> None:
    """Send a tree to another process, which receives it with :func:`recv`.

    Arguments:
        tree: A tree of arrays or scalars.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of its messages.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    _call(send_array, tree, dest, tag=tag, comm=comm)


@without_tokens
def sendrecv(
    sendtree: object,
    recvtree: T,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> T:
    """Send a tree to one process while receiving another from a process.

    Arguments:
        sendtree: A tree of arrays or scalars to send.
        recvtree: A tree of arrays or scalars with the structure, shapes and dtypes of what
            is received. This can contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        dest (int): Rank of the destination MPI process.
        sendtag (int): Tag of the messages for sending.
        recvtag (int): Tag of the messages for receiving.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received tree (the arrays of ``recvtree`` itself if ``source`` is
        :obj:`mpi4py.MPI.PROC_NULL`).

    """
    function: Callable[..., Any] = sendrecv_array
    return function(
        Tree("sendtree", sendtree),
        Tree("recvtree", recvtree),
        source,
        dest,
        sendtag=sendtag,
        recvtag=recvtag,
        comm=comm,
    )
