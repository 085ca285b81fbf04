"""Several messages at once (MPI-4.1 §3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mpi4jax._override import override

from ..arguments.types import Array, Comm, RankTree, T
from ..layout.packing import Tree
from ..mpi import handles
from ..older_api.token import NOTSET, NotSet, raise_if_token_is_set
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import LoweringContext, ShapedArray, Tangent, Value
from ._arguments import ANY_SOURCE, ANY_TAG, like, refuse_unknown_source
from ._calls import Call
from ._computed import operand_of
from ._leaves import LeafOperation
from ._lowering import call_in_program
from ._messages import (
    RECEIVING,
    SENDING,
    Messages,
    message_attributes,
    message_avals,
    messages_of,
    pack_messages,
    unpack_messages,
)
from ._rules import as_primitive
from ._transposes import (
    Jvp,
    inexact_tangents,
    is_inexact,
    tangents_of,
)

X = TypeVar("X")


@as_primitive
@dataclass(frozen=True)
class Exchange(LeafOperation):
    """Messages at once, on the leaves of two trees: `sendbuf`, and then `recvbuf`.

    Where the program computes ranks, these are one more operand, the last one.

    JAX knows the leaves, so derivatives and maps go leaf by leaf. The handler has an array
    for each message.
    """

    sent: Messages
    received: Messages

    name = "exchange"
    operands = ("sendbuf", "recvbuf")
    is_collective = False

    @override
    def ranks(self) -> Sequence[int]:
        return *self.sent.ranks, *self.received.ranks

    @override
    def messages(self) -> tuple[Messages, Messages]:
        return self.sent, self.received

    @override
    def split_leaves(
        self, operands: Sequence[X]
    ) -> tuple[Sequence[X], Sequence[X], Sequence[X]]:
        """The leaves of `sendbuf`, the leaves of `recvbuf`, and the operand of ranks."""
        leaves, numbers = self.split_operands(operands)
        count = self.sent.count_leaves()
        return leaves[:count], leaves[count:], numbers

    @override
    def result_avals(self, *avals: ShapedArray) -> list[ShapedArray]:
        _, recvbuf, _ = self.split_leaves(avals)
        return list(map(like, recvbuf))

    @override
    def lower(self, ctx: LoweringContext, *operands: Value) -> Sequence[Value]:
        sendbuf, recvbuf, numbers = self.split_leaves(operands)
        send_avals, _, types = self.split_leaves(ctx.avals_in)
        arrays, avals = pack_messages(ctx, self.sent, sendbuf)
        envelopes = Envelopes(
            self.sent.envelopes(send_avals),
            self.received.envelopes(ctx.avals_out),
        )
        results = call_in_program(
            ctx,
            self.communicator,
            self.name,
            [*arrays, *numbers],
            message_attributes(self.communicator, self.sent, self.received),
            envelopes,
            envelopes,
            is_computed=self.is_computed,
            avals_in=[*avals, *types],
            avals_out=message_avals(self.received, ctx.avals_out),
        )
        return unpack_messages(ctx, self.received, results, recvbuf, numbers)

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        results = self.bind(*primals)
        sendbuf, recvbuf, numbers = self.split_leaves(primals)
        # Integers have no tangents to be sent, on either side.
        of_tangents = Exchange(
            self.communicator,
            self.sent.select(list(map(is_inexact, sendbuf))),
            self.received.select(list(map(is_inexact, recvbuf))),
        )
        pushed = inexact_tangents(primals, tangents)
        numbers = numbers if of_tangents.is_computed else ()
        return results, tangents_of(results, of_tangents.bind(*pushed, *numbers))

    @override
    def check_transpose(self) -> None:
        if ANY_SOURCE in self.received.ranks or ANY_TAG in self.received.tags:
            refuse_unknown_source(
                "exchange with MPI.ANY_SOURCE or MPI.ANY_TAG", "where the message came from"
            )


def call(
    function: str,
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
) -> Call[T]:
    """Prepare a call of `function`, a form of exchange."""
    communicator = handles.communicator(function, comm)
    send_tree, recv_tree = Tree("sendbuf", sendbuf), Tree("recvbuf", recvbuf)
    computed: list[Array] = []
    sent = messages_of(function, SENDING, send_tree, dest, sendtag, communicator, computed)
    received = messages_of(
        function, RECEIVING, recv_tree, source, recvtag, communicator, computed
    )
    operation = Exchange(communicator, sent, received)
    numbers = operand_of(computed) if operation.is_computed else ()
    return Call(function, operation, send_tree, recv_tree, *numbers)


def exchange(
    sendbuf: object,
    recvbuf: T,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
    token: NotSet = NOTSET,
) -> T:
    """Send and receive any number of messages at once.

    All receives are posted, then all sends, and then the call waits for all of them. So
    no order of the messages leads to a deadlock, and all are in flight at the same time.
    Each rank in ``dest`` and ``source`` stands for one message. It contains the array at
    the same position in ``sendbuf`` or ``recvbuf``, or the arrays of the tree there, of
    any types.

    Arguments:
        sendbuf: A tree of arrays or scalars to send, for example a list.
        recvbuf: A tree of arrays or scalars with the structure, shapes and dtypes of what
            is received. This can contain arbitrary data and will not be overwritten.
        source: The ranks that send the messages: a tree that is a prefix of the tree
            ``recvbuf``, for example a list of as many ranks, or one rank for all of
            ``recvbuf``.
        dest: The ranks that receive the messages, in the same way for ``sendbuf``.
        sendtag: A tag for all messages sent, or a tree of tags like ``dest``.
        recvtag: A tag for all messages received, or a tree of tags like ``source``.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The received tree (with the arrays of ``recvbuf`` itself where the source is
        :obj:`mpi4py.MPI.PROC_NULL`).

    """
    raise_if_token_is_set(token, "exchange")
    tags = {"sendtag": sendtag, "recvtag": recvtag}
    received: T = call("exchange", sendbuf, recvbuf, source, dest, **tags, comm=comm).run()
    return received
