"""Any number of messages at once, and the leaves of trees that travel in each.

What a handler sends and receives is one array for each message: if a message has several
leaves, a program packs and unpacks them around the call. Messages to and from PROC_NULL
have no array, as MPI does not transfer them (MPI-4.1 §3.10).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import carrier_aval
from ..arguments.types import Array, RankTree
from ..layout.packing import Tree, as_words, from_words, word_of
from ..mpi.handles import Communicator
from ..xla.call_sites import Envelope
from ..xla.jax_compat import LoweringContext, ShapedArray, Value, convert, lower_with
from ._arguments import PROC_NULL, bytes_of, dest_rank, recv_tag, send_tag, source_rank
from ._computed import is_computed, parameter_of, where_null
from ._lowering import Attributes

X = TypeVar("X")


class Messages(NamedTuple):
    """The messages of one direction, and how many leaves travel in each."""

    ranks: tuple[int, ...]
    tags: tuple[int, ...]
    leaf_counts: tuple[int, ...]

    @classmethod
    def single(cls, rank: int, tag: int) -> Messages:
        """One message with one leaf."""
        return cls((rank,), (tag,), (1,))

    def count_leaves(self) -> int:
        """Number of leaves in all messages."""
        return sum(self.leaf_counts)

    def split(self, leaves: Sequence[X]) -> list[Sequence[X]]:
        """The leaves of each message, from the leaves of all messages."""
        ends = itertools.accumulate(self.leaf_counts)
        pairs = zip(self.leaf_counts, ends, strict=True)
        return [leaves[end - count : end] for count, end in pairs]

    def envelopes(self, avals: Sequence[ShapedArray]) -> tuple[Envelope, ...]:
        """The envelope of each message, from the types of all leaves."""
        sizes = [sum(map(bytes_of, leaves)) for leaves in self.split(avals)]
        return tuple(map(Envelope, self.ranks, self.tags, sizes))

    def select(self, is_selected: Sequence[bool]) -> Messages:
        """The messages with only the selected leaves. Messages without any are left out."""
        leaf_counts = tuple(map(sum, self.split(is_selected)))
        rows = zip(self.ranks, self.tags, leaf_counts, strict=True)
        remaining = [row for row in rows if row[2]]
        if not remaining:
            return NO_MESSAGES
        return Messages(*map(tuple, zip(*remaining, strict=True)))

    def are_transferred(self) -> list[bool]:
        """Whether each of the messages has a process on the other side."""
        return [rank != PROC_NULL for rank in self.ranks]

    def ranks_of_leaves(self) -> list[int]:
        """The rank on the other side, for each leaf."""
        pairs = zip(self.ranks, self.leaf_counts, strict=True)
        return [rank for rank, count in pairs for _ in range(count)]


NO_MESSAGES = Messages((), (), ())


def message_attributes(
    communicator: Communicator, sent: Messages, received: Messages
) -> Attributes:
    """The envelopes of all messages as attributes of the handler's call."""

    def transferred(values: Sequence[int], messages: Messages) -> Any:
        selected = itertools.compress(values, messages.are_transferred())
        return np.array(list(selected), np.int64)

    return {
        "comm_number": np.int64(communicator.number),
        "dests": transferred(sent.ranks, sent),
        "sendtags": transferred(sent.tags, sent),
        "sources": transferred(received.ranks, received),
        "recvtags": transferred(received.tags, received),
    }


def message_avals(messages: Messages, avals: Sequence[ShapedArray]) -> list[ShapedArray]:
    """The types of the messages' arrays, from the types of all leaves."""
    parts = messages.split(list(map(carrier_aval, avals)))
    return list(map(_packed_aval, itertools.compress(parts, messages.are_transferred())))


def pack_messages(
    ctx: LoweringContext, messages: Messages, leaves: Sequence[Value]
) -> tuple[list[Value], list[ShapedArray]]:
    """The messages' arrays, from the first operands of a lowered call, and their types."""
    avals = list(map(carrier_aval, ctx.avals_in[: len(leaves)]))
    values = list(map(convert, leaves, avals))
    arrays: list[Value] = []
    parts = zip(messages.split(avals), messages.split(values), strict=True)
    for types, operands in itertools.compress(parts, messages.are_transferred()):
        arrays += lower_with(ctx, _pack, operands, types) if len(types) > 1 else operands
    return arrays, message_avals(messages, ctx.avals_in[: len(leaves)])


def unpack_messages(
    ctx: LoweringContext,
    messages: Messages,
    received: Sequence[Value],
    recvbuf: Sequence[Any],
    numbers: Sequence[Value],
) -> list[Value]:
    """The results of a lowered call, from the arrays of the messages.

    A message from PROC_NULL leaves its leaves of `recvbuf` as they are (MPI-4.1 §3.10).

    Arguments:
        ctx: The context of the rule.
        messages: The messages.
        received: The arrays of the messages, but for messages from PROC_NULL.
        recvbuf: An array for each leaf that may be left as it is.
        numbers: The operand with the computed ranks, if there is one.

    """
    avals = list(map(carrier_aval, ctx.avals_out))
    results: list[Value] = []
    arrays = zip(received, message_avals(messages, ctx.avals_out), strict=True)
    for is_transferred, types, buffers in zip(
        messages.are_transferred(),
        messages.split(avals),
        messages.split(recvbuf),
        strict=True,
    ):
        if not is_transferred:
            results += buffers
            continue
        array, aval = next(arrays)
        if len(types) == 1:
            results.append(array)
        else:
            results += lower_with(ctx, _unpack_as(types), [array], [aval])
    results = list(map(convert, results, ctx.avals_out))
    for n, rank in enumerate(messages.ranks_of_leaves()):
        if is_computed(rank):
            aval = ctx.avals_out[n]
            (results[n],) = lower_with(
                ctx,
                functools.partial(_keep_where_null, rank),
                [*numbers, recvbuf[n], results[n]],
                [ctx.avals_in[-1], aval, aval],
            )
    return results


def _keep_where_null(
    rank: int, numbers: Array, buffer: Array, received: Array
) -> list[Array]:
    return [where_null(rank, [numbers], buffer, received)]


def _packed_aval(avals: Sequence[ShapedArray]) -> ShapedArray:
    """The type of the array into which arrays of these types are packed."""
    if len(avals) == 1:
        return avals[0]
    word = word_of([aval.dtype for aval in avals])
    size = sum(map(bytes_of, avals))
    return ShapedArray((size // word.itemsize,), word)


def _pack(*arrays: Array) -> list[Array]:
    word = word_of([x.dtype for x in arrays])
    return [jnp.concatenate([as_words(x, word) for x in arrays])]


def _unpack_as(avals: Sequence[ShapedArray]) -> Callable[[Array], list[Array]]:
    word = word_of([aval.dtype for aval in avals])

    def unpack(array: Array) -> list[Array]:
        results, end = [], 0
        for aval in avals:
            start, end = end, end + bytes_of(aval) // word.itemsize
            words = jax.lax.slice_in_dim(array, start, end)
            results.append(from_words(words, aval.shape, aval.dtype))
        return results

    return unpack


class Side(NamedTuple):
    """Names of the arguments for the ranks and tags of one direction, and their checks."""

    ranks: str
    tags: str
    check_rank: Callable[[str, str, object, Communicator], int | Array]
    check_tag: Callable[[str, str, object, Communicator], int]


SENDING = Side("dest", "sendtag", dest_rank, send_tag)
RECEIVING = Side("source", "recvtag", source_rank, recv_tag)


def messages_of(
    function: str,
    side: Side,
    arrays: Tree,
    ranks: RankTree,
    tags: RankTree,
    communicator: Communicator,
    computed: list[Array],
) -> Messages:
    """The messages with the leaves of a tree, from the arguments for ranks and tags.

    Ranks that the program computes are added to the list of these.
    """
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
    checked = [side.check_rank(function, side.ranks, x, communicator) for x in leaves]
    tag_leaves, structure_of_tags = tree.tree_flatten(tags, is_leaf=lambda x: x is None)
    if tree.treedef_is_leaf(structure_of_tags):
        tag_leaves *= len(leaves)
    elif structure_of_tags != structure:
        raise ValueError(
            f"{function} got {tags!r} for argument `{side.tags}`, expected a tag, or a "
            f"tree of tags like that of ranks in `{side.ranks}`"
        )
    messages = Messages(
        tuple(parameter_of(rank, computed) for rank in checked),
        tuple(side.check_tag(function, side.tags, x, communicator) for x in tag_leaves),
        tuple(len(tree.tree_leaves(subtree)) for subtree in subtrees),
    )
    # A part of the tree without arrays is no message.
    return messages.select([True] * len(arrays.leaves))
