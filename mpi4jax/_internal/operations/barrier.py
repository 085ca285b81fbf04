"""MPI_Barrier (MPI-4.1 §6.3)."""

from __future__ import annotations

from typing import Any

from ..arguments.types import Comm
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..mpi import handles
from ._calls import Call
from .primitive import Operation

#: A barrier has the parameter `structure`, a hash of the tree that is passed next, or this.
#: With MPI4JAX_CHECK, processes compare it.
NO_STRUCTURE = 0


class Barrier(Operation):
    name = "barrier"
    operands = ()
    has_result = False

    def written_aval(self, *_: Any, **__: Any) -> None:
        return None


operation = Barrier()


def call(function: str, *, comm: Comm = None) -> Call:
    """Prepare a call of `function`, a form of barrier."""
    communicator = handles.communicator(function, comm)
    return Call(function, operation, communicator, structure=NO_STRUCTURE)


def barrier(*, comm: Comm = None, token: NotSet = NOTSET) -> None:
    """Wait until every process has reached the barrier.

    Arguments:
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    raise_if_token_is_set(token, "barrier")
    return call("barrier", comm=comm).run()
