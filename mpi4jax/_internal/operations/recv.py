"""MPI_Recv (MPI-4.1 §3.2.4)."""

from __future__ import annotations

from .. import handles
from ..annotations import Array, ArrayLike, Comm, Integer, Status
from ..operation import Operation
from ..token import AnyToken, with_tokens, without_tokens
from ..validation import integer
from ._arguments import ANY_SOURCE, ANY_TAG, PROC_NULL, like, no_derivative

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
    return operation.receive(
        communicator,
        x,
        source=integer("recv", "source", source),
        tag=integer("recv", "tag", tag),
        status=status,
    )


@with_tokens(recv)
def recv_with_token(
    x: ArrayLike,
    source: Integer = ANY_SOURCE,
    *,
    tag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
    token: AnyToken | None = None,
) -> tuple[Array, AnyToken]: ...
