"""MPI_Recv (MPI-4.1 §3.2.4)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ..validation import integer
from ._arguments import ANY_SOURCE, ANY_TAG, PROC_NULL, Array, like, no_derivative

recv_p = Operation(
    "recv",
    results=lambda x, **_: [like(x)],
    sent=lambda **_: 0,
    # Nothing comes from nowhere: the buffer stays as it was (MPI-4.1 §3.10).
    kept=lambda *, source, **_: 0 if source == PROC_NULL else None,
)
recv_p.def_jvp(no_derivative("recv"))


def recv(
    x: Any,
    source: Any = ANY_SOURCE,
    *,
    tag: Any = ANY_TAG,
    comm: Any = None,
    status: Any = None,
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
    group = handles.communicator("recv", comm)
    (result,) = recv_p.receive(
        group,
        x,
        source=integer("recv", "source", source),
        tag=integer("recv", "tag", tag),
        status=status,
    )
    return result
