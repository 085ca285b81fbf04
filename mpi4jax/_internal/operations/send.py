"""MPI_Send (MPI-4.1 §3.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.types import Array, Comm, Integer, Rank
from ..mpi import handles
from ..older_api.token import NOTSET, LinearToken, NotSet, raise_if_token_is_set
from ..xla.jax_compat import ShapedArray, Tangent
from ._arguments import dest_rank, refuse_derivative, send_tag
from ._calls import Call
from ._computed import split_computed
from ._linear import LinearOperation
from ._messages import NO_MESSAGES, Messages
from ._operation import Operation
from ._rules import as_primitive


@as_primitive
@dataclass(frozen=True)
class Send(Operation):
    dest: int
    tag: int

    name = "send"
    has_result = False
    is_collective = False
    is_one_sided = True

    @override
    def ranks(self) -> Sequence[int]:
        return (self.dest,)

    @override
    def messages(self) -> tuple[Messages, Messages]:
        return Messages.single(self.dest, self.tag), NO_MESSAGES

    @override
    def written_aval(self, *avals: ShapedArray) -> None:
        return None

    @override
    def read_operands(self) -> int:
        return 1

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> NoReturn:
        refuse_derivative("send")


@as_primitive
@dataclass(frozen=True)
class LinearSend(LinearOperation):
    plain: Send

    name = "send"


def call(
    function: str,
    x: object,
    dest: Rank,
    *,
    tag: Integer = 0,
    comm: Comm = None,
) -> Call[None]:
    """Prepare a call of `function`, a form of send."""
    communicator = handles.communicator(function, comm)
    try:
        known = dest_rank(function, "dest", dest, communicator)
    except ValueError as error:
        # Programs for the original, and its tests, look for the line that it prints.
        text = MPI.Get_error_string(MPI.ERR_RANK)
        line = f"r{communicator.rank} | MPI_Send returned error code {MPI.ERR_RANK}: {text}"
        raise ValueError(f"{error}\nMPI would refuse it: {line}") from None
    (dest,), ranks = split_computed(known)
    tag = send_tag(function, "tag", tag, communicator)
    return Call(function, Send(communicator, dest, tag), x, *ranks)


def send(
    x: object, dest: Rank, *, tag: Integer = 0, comm: Comm = None, token: NotSet = NOTSET
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
    token: LinearToken, x: object, dest: Rank, *, tag: Integer, comm: Comm
) -> LinearToken:
    prepared = call("send", x, dest, tag=tag, comm=comm)
    plain = prepared.operation
    assert isinstance(plain, Send)
    _, ranks = plain.split_operands(prepared.operands)
    _, token = LinearSend(plain.communicator, plain).call(token, x, *ranks)
    return token
