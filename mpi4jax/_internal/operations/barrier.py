"""MPI_Barrier (MPI-4.1 §6.3)."""

from __future__ import annotations

from ..arguments.types import Comm
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ._barrier import Barrier
from ._calls import Call


def call(function: str, *, comm: Comm = None) -> Call[None]:
    """Prepare a call of `function`, a form of barrier."""
    communicator = handles.communicator(function, comm)
    return Call(function, Barrier(communicator))


def barrier(*, comm: Comm = None, token: NotSet = NOTSET) -> None:
    """Wait until every process has reached the barrier.

    Arguments:
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    raise_if_token_is_set(token, "barrier")
    return call("barrier", comm=comm).run()
