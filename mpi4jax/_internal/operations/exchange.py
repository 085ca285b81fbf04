"""Several messages at once (MPI-4.1 §3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ..arguments.dtypes import check_dtype
from ..arguments.types import Comm, RankTree, T
from ..forms.token import NOTSET, NotSet, raise_if_token_is_set
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import ShapedArray
from ._arguments import ANY_SOURCE, ANY_TAG, like, refuse_unknown_source
from ._calls import Call
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
from ._transposes import inexact_tangents, is_inexact, tangents_of
from .primitive import Operation


class Exchange(Operation):
    """The operands are the leaves that are sent, and then the leaves of `recvbuf`.

    JAX knows the leaves, so derivatives and maps go leaf by leaf. The handler has an array
    for each message.
    """

    name = "exchange"
    operands = ("sendbuf", "recvbuf")
    is_collective = False
    takes_leaves = True

    def messages(
        self, *, sent: Messages, received: Messages, **_: Any
    ) -> tuple[Messages, Messages]:
        return sent, received

    def apply(self, *operands: Any, **params: Any) -> list[Any]:
        results: list[Any] = self.primitive.bind(*operands, **params)
        return results

    def apply_to_leaves(self, *operands: Sequence[Any], **params: Any) -> list[Any]:
        sendbuf, recvbuf = (map(jnp.asarray, leaves) for leaves in operands)
        return self.apply(*sendbuf, *recvbuf, **params)

    def evaluate(self, *operands: Any, **params: Any) -> list[Any]:
        count = sum(params["sent"].leaf_counts)
        leaves = list(operands[:count]), list(operands[count:])
        return self.eager.evaluate(params["communicator"], leaves, params) or []

    def check_avals(self, function: str, *avals: Any, **_: Any) -> None:
        for aval in avals:
            check_dtype(function, "sendbuf or recvbuf", aval.dtype)

    def result_avals(self, *avals: Any, sent: Messages, **_: Any) -> list[ShapedArray]:
        return list(map(like, avals[sum(sent.leaf_counts) :]))

    def lower(
        self,
        ctx: Any,
        *operands: Any,
        sent: Messages,
        received: Messages,
        communicator: Communicator,
    ) -> Sequence[Any]:
        count = sum(sent.leaf_counts)
        arrays, avals = pack_messages(ctx, sent, operands[:count])
        envelopes = Envelopes(
            sent.envelopes(ctx.avals_in[:count]), received.envelopes(ctx.avals_out)
        )
        results = call_in_program(
            ctx,
            self.name,
            arrays,
            message_attributes(communicator, sent, received),
            envelopes,
            envelopes,
            avals_in=avals,
            avals_out=message_avals(received, ctx.avals_out),
        )
        return unpack_messages(ctx, received, results, operands[count:])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        results = self.apply(*primals, **params)
        # Integers have no tangents to be sent, on either side.
        has_tangent = list(map(is_inexact, primals))
        count = sum(params["sent"].leaf_counts)
        params["sent"] = params["sent"].select(has_tangent[:count])
        params["received"] = params["received"].select(has_tangent[count:])
        inexact = self.apply(*inexact_tangents(primals, tangents), **params)
        return results, tangents_of(results, inexact)

    def check_transpose(self, *, received: Messages, **_: Any) -> None:
        if ANY_SOURCE in received.ranks or ANY_TAG in received.tags:
            refuse_unknown_source(
                "exchange with MPI.ANY_SOURCE or MPI.ANY_TAG", "where the message came from"
            )

    def transpose(
        self, *args: Any, sent: Messages, received: Messages, communicator: Communicator
    ) -> Any:
        count = sum(received.leaf_counts)
        cotangents, sendbuf = args[:count], args[count : -count or None]
        # Each cotangent goes back the way of its message, with the message's tag.
        zeros = [jnp.zeros(x.shape, x.dtype) for x in sendbuf]
        back = self.apply(
            *cotangents, *zeros, sent=received, received=sent, communicator=communicator
        )
        # A result does not depend on `recvbuf`, except if that is the result.
        recv_cotangents = [
            cotangent if is_forwarded else jnp.zeros_like(cotangent)
            for cotangent, is_forwarded in zip(
                cotangents, received.are_forwarded(), strict=True
            )
        ]
        return *back, *recv_cotangents


operation = Exchange()


def call(
    function: str,
    sendbuf: object,
    recvbuf: object,
    source: RankTree,
    dest: RankTree,
    *,
    sendtag: RankTree = 0,
    recvtag: RankTree = 0,
    comm: Comm = None,
) -> Call:
    """Prepare a call of `function`, a form of exchange."""
    communicator = handles.communicator(function, comm)
    sent, received = Tree("sendbuf", sendbuf), Tree("recvbuf", recvbuf)
    return Call(
        function,
        operation,
        communicator,
        sent,
        received,
        sent=messages_of(function, SENDING, sent, dest, sendtag, communicator),
        received=messages_of(function, RECEIVING, received, source, recvtag, communicator),
    )


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
