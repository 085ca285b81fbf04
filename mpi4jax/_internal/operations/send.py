"""MPI_Send (MPI-4.1 §3.2.1)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from ..arguments.types import Comm, Integer
from ..forms.token import NOTSET, LinearToken, NotSet, raise_if_token_is_set
from ..mpi import handles
from ._arguments import dest_rank, refuse_derivative, send_tag
from ._calls import Call
from ._linear import LinearOperation, get_linear
from ._messages import NO_MESSAGES, Messages
from .primitive import Operation


class Send(Operation):
    name = "send"
    has_result = False
    is_collective = False

    def messages(self, *, dest: int, tag: int, **_: Any) -> tuple[Messages, Messages]:
        return Messages.single(dest, tag), NO_MESSAGES

    def written_aval(self, *_: Any, **__: Any) -> None:
        return None

    def read_operands(self, **_: Any) -> int:
        return 1

    def jvp(self, *_: Any, **__: Any) -> Any:
        refuse_derivative("send")


class LinearSend(LinearOperation):
    name = "send"

    def transpose(
        self,
        cotangent: Any,
        x: Any,
        token: Any,
        origin: Any,
        *,
        dest: int,
        is_tangent: bool,
        **params: Any,
    ) -> Any:
        zeros = jnp.zeros(x.shape, x.dtype)
        params.update(source=dest, status_number=handles.NO_STATUS)
        return *get_linear("recv").apply_back(zeros, cotangent, origin, **params), None


operation = Send()
linear_operation = LinearSend(operation)


def call(
    function: str,
    x: object,
    dest: Integer,
    *,
    tag: Integer = 0,
    comm: Comm = None,
) -> Call:
    """Prepare a call of `function`, a form of send."""
    communicator = handles.communicator(function, comm)
    try:
        dest = dest_rank(function, "dest", dest, communicator)
    except ValueError as error:
        # Programs for the original, and its tests, look for the line that it prints.
        text = MPI.Get_error_string(MPI.ERR_RANK)
        line = f"r{communicator.rank} | MPI_Send returned error code {MPI.ERR_RANK}: {text}"
        raise ValueError(f"{error}\nMPI would refuse it: {line}") from None
    tag = send_tag(function, "tag", tag, communicator)
    return Call(function, operation, communicator, x, dest=dest, tag=tag)


def send(
    x: object, dest: Integer, *, tag: Integer = 0, comm: Comm = None, token: NotSet = NOTSET
) -> None:
    """Send an array to another process.

    Arguments:
        x: Array or scalar input to send, or a tree of them.
        dest (int): Rank of the destination MPI process.
        tag (int): Tag of this message.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    """
    raise_if_token_is_set(token, "send")
    return call("send", x, dest, tag=tag, comm=comm).run()


def with_linear_token(
    token: LinearToken, x: Any, dest: Any, *, tag: Any, comm: Any
) -> LinearToken:
    prepared = call("send", x, dest, tag=tag, comm=comm)
    _, token = linear_operation.call(token, x, **prepared.params)
    return token
