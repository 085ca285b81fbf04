"""MPI_Sendrecv (MPI-4.1 §3.11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, overload

import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Integer, PyTree, Rank, Status, T
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.dependence import depend
from ..xla.jax_compat import ShapedArray, Tangent
from ._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    dest_rank,
    like,
    recv_tag,
    refuse_unknown_source,
    send_tag,
    source_rank,
)
from ._calls import Call, ReceivingOperation, run_with_status
from ._computed import split_computed
from ._eager import ArrayOrLeaves
from ._messages import Messages
from ._rules import as_primitive
from ._transposes import Jvp, instantiated


@as_primitive
@dataclass(frozen=True)
class SendRecv(ReceivingOperation):
    source: int
    dest: int
    sendtag: int
    recvtag: int

    name = "sendrecv"
    operands: ClassVar[tuple[str, ...]] = ("sendbuf", "recvbuf")
    is_collective = False

    @override
    def ranks(self) -> Sequence[int]:
        return self.source, self.dest

    @override
    def messages(self) -> tuple[Messages, Messages]:
        return (
            Messages.single(self.dest, self.sendtag),
            Messages.single(self.source, self.recvtag),
        )

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        recvbuf, *_ = others
        return like(recvbuf)

    @override
    def read_operands(self) -> int:
        # `recvbuf` is the result, if there turns out to be no source.
        return 2 if self.is_computed else 1

    @override
    def forwarded_operand(self) -> int | None:
        # A receive from PROC_NULL leaves the buffer as it is (MPI-4.1 §3.10).
        return 1 if self.source == PROC_NULL else None

    @override
    def call_in_program(self, *operands: ArrayOrLeaves) -> PyTree:
        sendbuf, recvbuf, *ranks = operands
        if sendbuf is not None and recvbuf is not None:
            return super().call_in_program(*operands)
        # A tree that has fewer groups than the other one sends none, or receives none.
        if sendbuf is None:
            sendbuf, operation = jnp.zeros(0), replace(self, dest=PROC_NULL)
        else:
            recvbuf, operation = jnp.zeros(0), replace(self, source=PROC_NULL)
        return operation.apply(sendbuf, recvbuf, *(ranks if operation.is_computed else ()))

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        (sendbuf, recvbuf), ranks = self.split_operands(primals)
        pushed = *instantiated(tangents[:2]), mark_of([sendbuf, recvbuf]), *ranks
        ranks_and_tags = self.source, self.dest, self.sendtag, self.recvtag
        on_tangents = SendRecvTangents(self.communicator, *ranks_and_tags)
        return self.bind(*primals), on_tangents.bind(*pushed)

    @override
    def check_transpose(self) -> None:
        if self.source == ANY_SOURCE:
            refuse_unknown_source("sendrecv with source=MPI.ANY_SOURCE")


@as_primitive
@dataclass(frozen=True)
class SendRecvTangents(SendRecv):
    """A sendrecv of tangents, which have one direction in common on all processes.

    :func:`jax.jacfwd` maps over directions: the basis of each process, at the same time.
    The third operand is the mark of the primal arrays, which has a batch only in a map over
    arrays and their tangents.
    """

    operands = ("sendbuf", "recvbuf", "mark")

    @override
    def check_batch(self, axes: Sequence[int | None]) -> None:
        check_batch_of_tangents(self.name, axes[2])

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        pushed = *instantiated(tangents[:2]), *primals[2:]
        return self.bind(*primals), self.bind(*pushed)


def call(
    function: str,
    sendbuf: object,
    recvbuf: ArrayLike | T,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of sendrecv."""
    communicator = handles.communicator(function, comm)
    (source, dest), ranks = split_computed(
        source_rank(function, "source", source, communicator),
        dest_rank(function, "dest", dest, communicator),
    )
    operation = SendRecv(
        communicator,
        source=source,
        dest=dest,
        sendtag=send_tag(function, "sendtag", sendtag, communicator),
        recvtag=recv_tag(function, "recvtag", recvtag, communicator),
    )
    return Call(function, operation, sendbuf, recvbuf, *ranks)


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
) -> Array: ...
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
) -> T: ...
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
    token: NotSet = NOTSET,
) -> Array | T:
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

    Returns:
        The received array (``recvbuf`` itself if ``source`` is
        :obj:`mpi4py.MPI.PROC_NULL`).

    """
    raise_if_token_is_set(token, "sendrecv")
    tags = {"sendtag": sendtag, "recvtag": recvtag}
    prepared = call("sendrecv", sendbuf, recvbuf, source, dest, **tags, comm=comm)
    return run_with_status(prepared, status)


def check_batch_of_tangents(function: str, axis_of_mark: int | None) -> None:
    """Refuse a batch of tangents alone: the mark of the arrays has no batch."""
    if axis_of_mark is None:
        raise RuntimeError(
            f"{function} can't be used with jax.jacfwd, nor with jax.vmap over tangents "
            "alone: every process pushes a basis of its own, and what arrives is the "
            "derivative with respect to the array of another process. Use jax.jacrev, "
            "or jax.jvp for one direction that all processes have in common."
        )


def mark_of(primals: Sequence[Array]) -> Array:
    """A scalar that is mapped over where one of the arrays is."""
    return depend(jnp.zeros((), bool), *primals)
