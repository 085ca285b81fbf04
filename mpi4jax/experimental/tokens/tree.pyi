# Written by `make stubs` (tools/stubs.py) from the forms without tokens.
from typing import TypeVar

from ..._internal.arguments.types import Comm, Integer, Op, Token
from ..._internal.operations._arguments import ANY_SOURCE, ANY_TAG

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]

T = TypeVar("T")

def allgather(
    tree: T,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Collect a tree from every process, on every process.

    Arguments:
        tree: A tree of arrays or scalars.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree, with the leaves of all processes stacked in rank order: shape ``(nproc,
          *leaf.shape)``.
        - The given token, or a new one.

    """

def allreduce(
    tree: T,
    op: Op,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Reduce a tree over all processes, with the result on every process.

    Arguments:
        tree: A tree of arrays or scalars.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree of the reduced arrays.
        - The given token, or a new one.

    """

def alltoall(
    tree: T,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Exchange slices of the leaves of a tree between all processes.

    Arguments:
        tree: A tree of arrays, the first axis of which must have size ``nproc``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree, with the received slices stacked in rank order.
        - The given token, or a new one.

    """

def bcast(
    tree: T,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Send a tree from one process to all others.

    Arguments:
        tree: A tree of arrays or scalars. Data is only read on the root process. On the
            others this determines the structure, shapes and dtypes of the result.
        root (int): Rank of the process to use as source.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received tree (the arrays of ``tree`` itself on the root process).
        - The given token, or a new one.

    """

def gather(
    tree: T,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Collect a tree from every process, on one process.

    Arguments:
        tree: A tree of arrays or scalars.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - On root as :func:`allgather`, the arrays of ``tree`` elsewhere.
        - The given token, or a new one.

    """

def recv(
    tree: T,
    source: Integer = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Receive a tree from another process, which sends it with :func:`send`.

    Arguments:
        tree: A tree of arrays or scalars with the structure, shapes and dtypes of what is
            received. This can contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of its messages.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received tree.
        - The given token, or a new one.

    """

def reduce(
    tree: T,
    op: Op,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Reduce a tree over all processes, with the result on one process.

    Arguments:
        tree: A tree of arrays or scalars.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree of the reduced arrays on root, the arrays of ``tree`` elsewhere.
        - The given token, or a new one.

    """

def reduce_scatter(
    tree: T,
    op: Op,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Reduce a tree over all processes, with a slice of each leaf on each process.

    Arguments:
        tree: A tree of arrays, the first axis of which must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree of the reductions of ``leaf[rank]``: shape ``leaf.shape[1:]``.
        - The given token, or a new one.

    """

def scan(
    tree: T,
    op: Op,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Reduce a tree over this process and those before it.

    Arguments:
        tree: A tree of arrays or scalars.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree of the reductions over the ranks from 0 to that of this process.
        - The given token, or a new one.

    """

def scatter(
    tree: T,
    root: Integer,
    *,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
    """Send each process its slice of the leaves of a tree of one process.

    Arguments:
        tree: On root, a tree of arrays of shape ``(nproc, ...)``. Elsewhere, a tree of
            arrays with the shapes and dtypes of the result, whose data is not read.
        root (int): Rank of the root process.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The tree of the received slices.
        - The given token, or a new one.

    """

def send(
    tree: T,
    dest: Integer,
    *,
    tag: Integer = 0,
    comm: Comm = None,
    token: Token | None = None,
) -> Token:
    """Send a tree to another process, which receives it with :func:`recv`.

    Arguments:
        tree: A tree of arrays or scalars.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of its messages.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        The given token, or a new one.

    """

def sendrecv(
    sendtree: object,
    recvtree: T,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    token: Token | None = None,
) -> tuple[T, Token]:
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
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.

    Returns:
        A tuple of two.

        - The received tree (the arrays of ``recvtree`` itself if ``source`` is
          :obj:`mpi4py.MPI.PROC_NULL`).
        - The given token, or a new one.

    """
