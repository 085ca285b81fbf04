"""MPI_Send (MPI-4.1 §3.2.1)."""

from __future__ import annotations

from .. import handles
from ..annotations import ArrayLike, Comm, Integer
from ..operation import Operation
from ..token import AnyToken, with_tokens, without_tokens
from ..validation import integer
from ._arguments import no_derivative

operation = Operation("send", result=lambda x, **_: None)
operation.def_jvp(no_derivative("send"))


@without_tokens
def send(x: ArrayLike, dest: Integer, *, tag: Integer = 0, comm: Comm = None) -> None:
    """Send an array to another process.

    Arguments:
        x: Array or scalar input to send.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    communicator = handles.communicator("send", comm)
    operation(
        communicator, x, dest=integer("send", "dest", dest), tag=integer("send", "tag", tag)
    )


@with_tokens(send)
def send_with_token(
    x: ArrayLike,
    dest: Integer,
    *,
    tag: Integer = 0,
    comm: Comm = None,
    token: AnyToken | None = None,
) -> AnyToken: ...
