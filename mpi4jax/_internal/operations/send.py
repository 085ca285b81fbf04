"""MPI_Send (MPI-4.1 §3.2.1)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from ..validation import integer
from ._arguments import no_derivative

send_p = Operation("send", results=lambda x, **_: [])
send_p.def_jvp(no_derivative("send"))


def send(x: Any, dest: Any, *, tag: Any = 0, comm: Any = None) -> None:
    """Send an array to another process.

    Arguments:
        x: Array or scalar input to send.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    group = handles.communicator("send", comm)
    send_p(group, x, dest=integer("send", "dest", dest), tag=integer("send", "tag", tag))
