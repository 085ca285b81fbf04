"""MPI_Recv (MPI-4.1 §3.2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, overload

import jax

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Comm, Integer, PyTree, Rank, Status, T
from ..mpi import handles
from ..older_api.token import NOTSET, LinearToken, NotSet, raise_if_token_is_set
from ..xla.jax_compat import Tangent
from ._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    recv_tag,
    refuse_derivative,
    refuse_unknown_source,
    source_rank,
)
from ._calls import Call, ReceivingOperation, refuse_status_of_trees, run_with_status
from ._computed import split_computed
from ._linear import LinearOperation
from ._messages import NO_MESSAGES, Messages
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class Recv(ReceivingOperation):
    source: int
    tag: int

    name = "recv"
    is_collective = False
    is_one_sided = True

    @override
    def ranks(self) -> Sequence[int]:
        return (self.source,)

    @override
    def messages(self) -> tuple[Messages, Messages]:
        return NO_MESSAGES, Messages.single(self.source, self.tag)

    @override
    def read_operands(self) -> int:
        # The result, if there turns out to be no source.
        return 1 if self.is_computed else 0

    @override
    def forwarded_operand(self) -> int | None:
        # A receive from PROC_NULL leaves the buffer as it is (MPI-4.1 §3.10).
        return 0 if self.source == PROC_NULL else None

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> NoReturn:
        refuse_derivative("recv")


@as_primitive
@dataclass(frozen=True)
class LinearRecv(LinearOperation):
    plain: Recv

    name = "recv"

    @override
    def tangents_operation(self) -> LinearRecv:
        plain = replace(self.plain, status_number=handles.NO_STATUS)
        return LinearRecv(self.communicator, plain, is_tangent=True)

    @override
    def check_transpose(self) -> None:
        if self.plain.source == ANY_SOURCE:
            refuse_unknown_source("recv with source=MPI.ANY_SOURCE")


def call(
    function: str,
    x: ArrayLike | T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Call[Array | T]:
    """Prepare a call of `function`, a form of recv."""
    communicator = handles.communicator(function, comm)
    known = source_rank(function, "source", source, communicator)
    (source,), ranks = split_computed(known)
    tag = recv_tag(function, "tag", tag, communicator)
    return Call(function, Recv(communicator, source, tag), x, *ranks)


@overload
def recv(
    x: ArrayLike,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> Array: ...
@overload
def recv(
    x: T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> T: ...
def recv(
    x: ArrayLike | T,
    source: Rank = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: NotSet = NOTSET,
) -> Array | T:
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

    Returns:
        The received array (``x`` itself if ``source`` is :obj:`mpi4py.MPI.PROC_NULL`).

    """
    raise_if_token_is_set(token, "recv")
    return run_with_status(call("recv", x, source, tag=tag, comm=comm), status)


def with_linear_token(
    token: LinearToken,
    x: PyTree,
    source: Rank,
    *,
    tag: Integer,
    comm: Comm,
    status: Status,
) -> tuple[PyTree, LinearToken]:
    prepared = call("recv", x, source, tag=tag, comm=comm)
    plain = prepared.operation
    assert isinstance(plain, Recv)
    _, ranks = plain.split_operands(prepared.operands)
    if status is not None:
        refuse_status_of_trees("recv", x)
        plain = replace(plain, status_number=handles.status_number("recv", status))
    result = LinearRecv(plain.communicator, plain).call(token, x, *ranks)
    # The status is filled when the call has run.
    return result if status is None else jax.block_until_ready(result)
