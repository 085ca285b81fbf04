"""MPI_Recv (MPI-4.1 §3.2.4)."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from ..arguments.types import Array, ArrayLike, Comm, Integer, Status, T
from ..forms.token import NOTSET, LinearToken, NotSet, raise_if_token_is_set
from ..mpi import handles
from ._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    recv_tag,
    refuse_derivative,
    refuse_unknown_source,
    source_rank,
)
from ._calls import Call, refuse_status_of_trees
from ._linear import LinearOperation, get_linear
from ._messages import NO_MESSAGES, Messages
from .primitive import Operation


class Recv(Operation):
    name = "recv"
    is_collective = False

    def messages(self, *, source: int, tag: int, **_: Any) -> tuple[Messages, Messages]:
        return NO_MESSAGES, Messages.single(source, tag)

    def read_operands(self, **_: Any) -> int:
        return 0

    def forwarded_operand(self, *, source: int, **_: Any) -> int | None:
        # A receive from PROC_NULL leaves the buffer as it is (MPI-4.1 §3.10).
        return 0 if source == PROC_NULL else None

    def jvp(self, *_: Any, **__: Any) -> Any:
        refuse_derivative("recv")


class LinearRecv(LinearOperation):
    name = "recv"

    def check_transpose(self, *, source: int, **_: Any) -> None:
        if source == ANY_SOURCE:
            refuse_unknown_source("recv with source=MPI.ANY_SOURCE")

    def transpose(
        self,
        cotangent: Any,
        token_cotangent: Any,
        x: Any,
        token: Any,
        origin: Any,
        *,
        source: int,
        tag: int,
        status_number: int,
        is_tangent: bool,
        **params: Any,
    ) -> Any:
        # The tag with which the message came is not known: that of `send` by default.
        params.update(dest=source, tag=0 if tag == ANY_TAG else tag)
        send = get_linear("send")
        (token,) = send.apply_back(cotangent, token_cotangent, origin, **params)
        # The result does not depend on `x`, except if that is the result.
        back = cotangent if source == PROC_NULL else jnp.zeros(x.shape, x.dtype)
        return back, token, None


operation = Recv()
linear_operation = LinearRecv(operation)


def call(
    function: str,
    x: object,
    source: Integer = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
) -> Call:
    """Prepare a call of `function`, a form of recv."""
    communicator = handles.communicator(function, comm)
    return Call(
        function,
        operation,
        communicator,
        x,
        source=source_rank(function, "source", source, communicator),
        tag=recv_tag(function, "tag", tag, communicator),
        status_number=handles.NO_STATUS,
    )


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
def recv(
    x: ArrayLike | T,
    source: Integer = ANY_SOURCE,
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
    return call("recv", x, source, tag=tag, comm=comm).run_with_status(status)


def with_linear_token(
    token: LinearToken, x: Any, source: Any, *, tag: Any, comm: Any, status: Any
) -> tuple[Any, LinearToken]:
    prepared = call("recv", x, source, tag=tag, comm=comm)
    if status is not None:
        refuse_status_of_trees("recv", x)
        prepared.params["status_number"] = handles.status_number("recv", status)
    result = linear_operation.call(token, x, **prepared.params)
    # The status is filled when the call has run.
    return result if status is None else jax.block_until_ready(result)
