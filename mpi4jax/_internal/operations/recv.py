"""MPI_Recv (MPI-4.1 §3.2.4)."""

from __future__ import annotations

from typing import Any

import jax

from ..arguments.types import Array, ArrayLike, Comm, Integer, Status
from ..forms.token import LinearToken, without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    like,
    no_derivative,
    recv_tag,
    source_rank,
)
from ._linear import Linear, linear
from .primitive import Operation

operation = Operation(
    "recv",
    result=lambda x, **_: like(x),
    sent=lambda **_: 0,
    # Nothing comes from nowhere: the buffer stays as it was (MPI-4.1 §3.10).
    kept=lambda *, source, **_: 0 if source == PROC_NULL else None,
)
operation.def_jvp(no_derivative("recv"))


@without_tokens
def recv(
    x: ArrayLike,
    source: Integer = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> Array:
    """Receive an array from another process.

    .. warning::

        Unlike mpi4py's recv, this returns a *new* array with the received data.

    Arguments:
        x: Array or scalar input with the correct shape and dtype. This can contain
           arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        status (mpi4py.MPI.Status): Filled when the message has been received.

    Returns:
        The received array (``x`` itself if ``source`` is :obj:`mpi4py.MPI.PROC_NULL`).

    """
    communicator = handles.communicator("recv", comm)
    params = _params(source, tag, communicator)
    return operation.receive(communicator, x, **params, status=status)


def _params(source: Any, tag: Any, communicator: Communicator) -> dict[str, int]:
    return {
        "source": source_rank("recv", "source", source, communicator),
        "tag": recv_tag("recv", "tag", tag, communicator),
    }


def with_linear_token(
    token: LinearToken,
    x: Any,
    source: Any = ANY_SOURCE,
    *,
    tag: Any = ANY_TAG,
    comm: Any = None,
    status: Any = None,
) -> tuple[Any, LinearToken]:
    communicator = handles.communicator("recv", comm)
    result = linear_recv.on(
        token,
        x,
        **_params(source, tag, communicator),
        status_number=handles.status_number("recv", status),
        communicator=communicator,
    )
    # The status is filled when the call has run.
    return jax.block_until_ready(result) if status is not None else result


def _transpose(
    cotangent: Any,
    token: Any,
    zeros: Any,
    origin: Any,
    *,
    source: int,
    tag: int,
    status_number: int,
    **params: Any,
) -> tuple[Any, Any]:
    if source == ANY_SOURCE:
        raise NotImplementedError(
            "recv with source=MPI.ANY_SOURCE can't be differentiated in reverse mode: the "
            "gradient has to be sent back to the source. Name it"
        )
    # The tag that a message comes with is not known. This is the one of a `send` without.
    tag = 0 if tag == ANY_TAG else tag
    (token,) = linear("send").apply(
        cotangent, token, origin, dest=source, tag=tag, **params
    )
    # What was in `x` had no part in the result, unless nothing came.
    return (cotangent if source == PROC_NULL else zeros), token


linear_recv = Linear(operation, _transpose)
