"""MPI_Send (MPI-4.1 §3.2.1)."""

from __future__ import annotations

from typing import Any

from ..arguments.checks import integer
from ..arguments.types import ArrayLike, Comm, Integer
from ..forms.token import LinearToken, without_tokens
from ..mpi import handles
from ..mpi.handles import Communicator
from ._arguments import dest_rank, no_derivative, send_tag
from ._linear import Linear, linear
from .primitive import Operation

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
    operation(communicator, x, **_params(dest, tag, communicator))


def _params(dest: Any, tag: Any, communicator: Communicator) -> dict[str, int]:
    dest = integer("send", "dest", dest)
    # Programs for the original, and its tests, send to a rank behind the last one to get an
    # error of MPI's, which ends all processes.
    if not communicator.size <= dest <= _LARGEST_INT:
        dest = dest_rank("send", "dest", dest, communicator)
    return {"dest": dest, "tag": send_tag("send", "tag", tag, communicator)}


#: Of MPI's ints.
_LARGEST_INT = 2**31 - 1


def with_linear_token(
    token: LinearToken, x: Any, dest: Any, *, tag: Any = 0, comm: Any = None
) -> LinearToken:
    communicator = handles.communicator("send", comm)
    params = _params(dest, tag, communicator)
    return linear_send.on(token, x, **params, communicator=communicator)[1]


def _transpose(
    token: Any, zeros: Any, origin: Any, *, dest: int, **params: Any
) -> tuple[Any, Any]:
    back, token = linear("recv").apply(
        zeros, token, origin, source=dest, status_number=handles.NO_STATUS, **params
    )
    return back, token


linear_send = Linear(operation, _transpose)
