"""Several messages at once (MPI-4.1 §3.7)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import carrier_aval, check_dtype
from ..arguments.types import Comm
from ..forms.token import without_tokens
from ..layout.packing import Tree, as_words, from_words, word_of
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla.call_sites import Envelope, Envelopes
from ..xla.effects import ordered_effect
from ..xla.jax_compat import ShapedArray, ad, convert, lower_with
from ._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    bytes_of,
    dest_rank,
    like,
    recv_tag,
    send_tag,
    source_rank,
)
from .primitive import Operation, inexact_tangents, is_inexact, tangents_of

T = TypeVar("T")


class Messages(NamedTuple):
    """The messages of one direction, each with the leaves that travel in it."""

    ranks: tuple[int, ...]
    tags: tuple[int, ...]
    #: How many leaves each of them has.
    parts: tuple[int, ...]

    @classmethod
    def one(cls, rank: int, tag: int) -> Messages:
        """One message with one leaf."""
        return cls((rank,), (tag,), (1,))

    def share(self, leaves: Sequence[Any]) -> list[Sequence[Any]]:
        """The leaves of each message."""
        ends = itertools.accumulate(self.parts)
        return [leaves[end - n : end] for n, end in zip(self.parts, ends, strict=True)]

    def envelopes(self, avals: Sequence[ShapedArray]) -> tuple[Envelope, ...]:
        """Our side of each, from the types of all leaves."""
        sizes = [sum(map(bytes_of, parts)) for parts in self.share(avals)]
        return tuple(map(Envelope, self.ranks, self.tags, sizes))

    def those(self, is_there: Sequence[bool]) -> Messages:
        """What is left of the messages with some of the leaves only."""
        parts = tuple(map(sum, self.share(is_there)))
        found = [m for m in zip(self.ranks, self.tags, parts, strict=True) if m[2]]
        return Messages(*map(tuple, zip(*found, strict=True))) if found else NO_MESSAGES


NO_MESSAGES = Messages((), (), ())


class _Exchange(Operation):
    """Takes the leaves that are sent, and then those that stand for what is received.

    JAX knows the leaves, so derivatives and maps go leaf by leaf. What the handler gets and
    gives is an array for each message, packed by the program around the call.
    """

    def __init__(self) -> None:
        super().__init__(
            "exchange", operands=("sendbuf", "recvbuf"), result=lambda *_: None
        )
        ad.primitive_transposes[self.primitive] = self._transpose
        self.def_jvp(self.push)

    def apply_to_leaves(self, *operands: Sequence[Any], **params: Any) -> Any:
        sendbuf, recvbuf = (list(map(jnp.asarray, leaves)) for leaves in operands)
        return self.primitive.bind(*sendbuf, *recvbuf, **params)

    def _evaluate(self, *operands: Any, communicator: Communicator, **params: Any) -> Any:
        number = sum(params["sent"].parts)
        sendbuf, recvbuf = list(operands[:number]), list(operands[number:])
        with jax.disable_jit(False):
            return self._run(communicator, sendbuf, recvbuf, **params) or []

    def _abstract_eval(self, *avals: Any, sent: Messages, **_: Any) -> Any:
        for aval in avals:
            check_dtype(self.name, "sendbuf or recvbuf", aval.dtype)
        return list(map(like, avals[sum(sent.parts) :])), {ordered_effect}

    def _lower(
        self,
        ctx: Any,
        *operands: Any,
        sent: Messages,
        received: Messages,
        communicator: Communicator,
    ) -> Sequence[Any]:
        number = sum(sent.parts)
        buffers, outgoing = pack_messages(ctx, sent, operands[:number])
        incoming = parcels_of(received, ctx.avals_out)
        messages = self._call(
            ctx,
            buffers,
            message_attributes(communicator, sent, received),
            envelopes=Envelopes(
                sent.envelopes(ctx.avals_in[:number]), received.envelopes(ctx.avals_out)
            ),
            avals_in=outgoing,
            avals_out=incoming,
        )
        return unpack_messages(ctx, received, messages, operands[number:])

    def push(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        results = self.primitive.bind(*primals, **params)
        # Integers have no tangents to be sent, on either side.
        differs = list(map(is_inexact, primals))
        number = sum(params["sent"].parts)
        params["sent"] = params["sent"].those(differs[:number])
        params["received"] = params["received"].those(differs[number:])
        pushed = self.primitive.bind(*inexact_tangents(primals, tangents), **params)
        return results, tangents_of(results, pushed)

    def _transpose(
        self,
        cotangents: Sequence[Any],
        *operands: Any,
        sent: Messages,
        received: Messages,
        communicator: Communicator,
    ) -> list[Any]:
        if ANY_SOURCE in received.ranks or ANY_TAG in received.tags:
            raise NotImplementedError(
                "exchange with MPI.ANY_SOURCE or MPI.ANY_TAG can't be differentiated in "
                "reverse mode: the gradient has to be sent back to where the message came "
                "from. Name it"
            )
        number = sum(sent.parts)
        is_linear = list(map(ad.is_undefined_primal, operands))
        avals = [
            x.aval if n else ShapedArray(jnp.shape(x), x.dtype)
            for x, n in zip(operands, is_linear, strict=True)
        ]
        arrived = list(map(ad.instantiate_zeros, cotangents))
        # Each cotangent goes back the way of its message, with the message's tag.
        nothing = [jnp.zeros(aval.shape, aval.dtype) for aval in avals[:number]]
        back = self.primitive.bind(
            *arrived, *nothing, sent=received, received=sent, communicator=communicator
        )
        # What was in recvbuf had no part in the result, unless nothing came.
        ranks = zip(received.ranks, received.parts, strict=True)
        is_kept = [rank == PROC_NULL for rank, parts in ranks for _ in range(parts)]
        kept = [
            ct if stays else jnp.zeros_like(ct)
            for ct, stays in zip(arrived, is_kept, strict=True)
        ]
        found = zip([*back, *kept], is_linear, strict=True)
        return [ct if n else None for ct, n in found]


# What the handler gets and gives: arrays for the messages that have a process on the other
# side.


def _is_real(messages: Messages) -> list[bool]:
    return [rank != PROC_NULL for rank in messages.ranks]


def message_attributes(
    communicator: Communicator, sent: Messages, received: Messages
) -> dict[str, Any]:
    """Where the messages go to and come from, as the handler is told."""

    def those(values: Sequence[int], messages: Messages) -> Any:
        return np.array(list(itertools.compress(values, _is_real(messages))), np.int64)

    return {
        "comm_number": np.int64(communicator.number),
        "dests": those(sent.ranks, sent),
        "sendtags": those(sent.tags, sent),
        "sources": those(received.ranks, received),
        "recvtags": those(received.tags, received),
    }


def parcels_of(messages: Messages, avals: Sequence[ShapedArray]) -> list[ShapedArray]:
    """The types of the messages that have such leaves."""
    shares = messages.share(list(map(carrier_aval, avals)))
    return list(map(_parcel, itertools.compress(shares, _is_real(messages))))


def pack_messages(
    ctx: Any, messages: Messages, leaves: Sequence[Any]
) -> tuple[list[Any], list[ShapedArray]]:
    """The first arrays of a program that is being lowered as messages, and their types."""
    avals = list(map(carrier_aval, ctx.avals_in[: len(leaves)]))
    values = list(map(convert, leaves, avals))
    packed: list[Any] = []
    shares = zip(messages.share(avals), messages.share(values), strict=True)
    for parts, given in itertools.compress(shares, _is_real(messages)):
        packed += lower_with(ctx, _packed, given, parts) if len(parts) > 1 else given
    return packed, parcels_of(messages, ctx.avals_in[: len(leaves)])


def unpack_messages(
    ctx: Any, messages: Messages, received: Sequence[Any], kept: Sequence[Any]
) -> list[Any]:
    """The results of a program that is being lowered, from messages.

    Nothing comes from nowhere: the array that was given for it stays (MPI-4.1 §3.10).
    """
    avals = list(map(carrier_aval, ctx.avals_out))
    results: list[Any] = []
    left = zip(received, parcels_of(messages, ctx.avals_out), strict=True)
    for is_real, parts, given in zip(
        _is_real(messages), messages.share(avals), messages.share(kept), strict=True
    ):
        if not is_real:
            results += given
            continue
        message, aval = next(left)
        if len(parts) == 1:
            results.append(message)
        else:
            results += lower_with(ctx, _unpacked(parts), [message], [aval])
    return list(map(convert, results, ctx.avals_out))


def _parcel(parts: Sequence[ShapedArray]) -> ShapedArray:
    """The type of a message with these arrays."""
    if len(parts) == 1:
        return parts[0]
    word = word_of([part.dtype for part in parts])
    size = sum(map(bytes_of, parts))
    return ShapedArray((size // word.itemsize,), word)


def _packed(*parts: Any) -> list[Any]:
    word = word_of([part.dtype for part in parts])
    return [jnp.concatenate([as_words(part, word) for part in parts])]


def _unpacked(parts: Sequence[ShapedArray]) -> Any:
    word = word_of([part.dtype for part in parts])

    def unpack(message: Any) -> list[Any]:
        results, end = [], 0
        for part in parts:
            start, end = end, end + bytes_of(part) // word.itemsize
            words = jax.lax.slice_in_dim(message, start, end)
            results.append(from_words(words, part.shape, part.dtype))
        return results

    return unpack


operation = _Exchange()


@without_tokens
def exchange(
    sendbuf: object,
    recvbuf: T,
    source: object,
    dest: object,
    *,
    sendtag: object = 0,
    recvtag: object = 0,
    comm: Comm = None,
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
    communicator = handles.communicator("exchange", comm)
    sent, received = Tree("sendbuf", sendbuf), Tree("recvbuf", recvbuf)
    received_tree: T = operation(
        communicator,
        sent,
        received,
        sent=messages_of("exchange", SENDING, sent, dest, sendtag, communicator),
        received=messages_of(
            "exchange", RECEIVING, received, source, recvtag, communicator
        ),
    )
    return received_tree


class Side(NamedTuple):
    """The arguments that say where messages go to or come from, and how each is checked."""

    ranks: str
    tags: str
    rank: Callable[[str, str, Any, Communicator], int]
    tag: Callable[[str, str, Any, Communicator], int]


SENDING = Side("dest", "sendtag", dest_rank, send_tag)
RECEIVING = Side("source", "recvtag", source_rank, recv_tag)


def messages_of(
    function: str,
    side: Side,
    arrays: Tree,
    ranks: Any,
    tags: Any,
    communicator: Communicator,
) -> Messages:
    """The messages with the leaves of a tree, as two arguments say."""
    tree: Any = jax.tree_util
    leaves, structure = tree.tree_flatten(ranks, is_leaf=lambda x: x is None)
    try:
        subtrees = structure.flatten_up_to(arrays.tree)
    except ValueError as error:
        raise ValueError(
            f"{function} got {ranks!r} for argument `{side.ranks}`, expected a rank, "
            f"or a tree of ranks with which the tree in `{arrays.argument}` begins: "
            f"{arrays.structure}"
        ) from error
    given = tuple(side.rank(function, side.ranks, rank, communicator) for rank in leaves)
    of_each, structure_of_tags = tree.tree_flatten(tags, is_leaf=lambda x: x is None)
    if tree.treedef_is_leaf(structure_of_tags):
        of_each *= len(given)
    elif structure_of_tags != structure:
        raise ValueError(
            f"{function} got {tags!r} for argument `{side.tags}`, expected a tag, or a "
            f"tree of tags like that of ranks in `{side.ranks}`"
        )
    messages = Messages(
        given,
        tuple(side.tag(function, side.tags, tag, communicator) for tag in of_each),
        tuple(len(tree.tree_leaves(subtree)) for subtree in subtrees),
    )
    # A part of the tree without arrays is no message.
    return messages.those([True] * len(arrays.leaves))
