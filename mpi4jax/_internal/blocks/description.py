"""Description of an exchange of blocks: messages with blocks of arrays, and copies."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from ..arguments.types import DType, Shaped
from ..operations._arguments import PROC_NULL, like
from ..operations._computed import is_computed
from ..operations._messages import Messages
from ..operations._transposes import is_inexact
from ..xla.jax_compat import ShapedArray
from .copies import Copy, CopyList, View

X = TypeVar("X")


class Message(NamedTuple):
    """A message to or from another process, with blocks of arrays.

    Both processes list its blocks in the same order, with the same shapes and data types.
    """

    #: Rank of the other process, or the parameter of a rank that the program computes. Only
    #: the latter can stand for MPI.PROC_NULL.
    rank: int
    tag: int
    blocks: tuple[View, ...]
    #: Whether the rank may be MPI.PROC_NULL. An exchange in place then leaves the blocks of
    #: a receive as they are.
    may_be_null: bool = False


class Block(NamedTuple):
    """A block of an array, and its place in the array of a message."""

    in_array: View
    in_message: View


class MessageArrays:
    """Flat arrays for all messages of one direction: one for each message and data type.

    A data type that no message has gets an empty array of a message with PROC_NULL. So each
    process has arrays of each type that are sent and received, and JAX's derivatives and
    maps, which follow arrays, reach the same calls on all processes.

    Arguments:
        messages: The messages.
        types: The types of the arrays that have the blocks, without the axes of a batch.
        first: The index of the first message array.

    """

    def __init__(
        self, messages: Sequence[Message], types: Sequence[ShapedArray], first: int
    ) -> None:
        self.types: list[ShapedArray] = []
        self.blocks: list[Block] = []
        #: Whether the message of each array may be one with PROC_NULL.
        self.may_be_null: list[bool] = []
        self._first = first
        rows: list[tuple[int, int, int]] = []
        for message in messages:
            of_type: dict[DType, list[View]] = {}
            for view in message.blocks:
                of_type.setdefault(types[view.array].dtype, []).append(view)
            for dtype, views in of_type.items():
                self._append(dtype, views, may_be_null=message.may_be_null)
            rows.append((message.rank, message.tag, len(of_type)))
        sent_types = {x.dtype for x in self.types}
        for dtype in dict.fromkeys(x.dtype for x in types):
            if dtype not in sent_types:
                self._append(dtype, [], may_be_null=False)
                rows.append((PROC_NULL, 0, 1))
        columns = [tuple(row[n] for row in rows) for n in range(3)]
        self.messages = Messages(*columns)

    def _append(self, dtype: DType, views: Sequence[View], *, may_be_null: bool) -> None:
        index, size = self._first + len(self.types), 0
        for view in views:
            shape = tuple(view.sizes)
            in_message = View(index, shape, size, tuple(map(range, shape)))
            self.blocks.append(Block(view, in_message))
            size += view.size
        self.types.append(ShapedArray((size,), dtype))
        self.may_be_null.append(may_be_null)

    @property
    def indices(self) -> range:
        """Indices of the arrays."""
        return range(self._first, self._first + len(self.types))

    @property
    def are_messages(self) -> bool:
        """Whether each array is a whole message."""
        return all(count == 1 for count in self.messages.leaf_counts)

    @property
    def transferred(self) -> list[int]:
        """Indices of the arrays that are sent or received."""
        ranks = self.messages.ranks_of_leaves()
        return [n for n, rank in zip(self.indices, ranks, strict=True) if rank != PROC_NULL]

    @property
    def nullable(self) -> list[int]:
        """Indices of the arrays whose messages can be ones with PROC_NULL."""
        return list(itertools.compress(self.indices, self.may_be_null))

    @property
    def nullable_types(self) -> list[ShapedArray]:
        """Types of the arrays whose messages can be ones with PROC_NULL."""
        return list(itertools.compress(self.types, self.may_be_null))

    def nullable_copies(self, first: int) -> list[Copy]:
        """Copies of the blocks of these messages to arrays like theirs, from `first` on."""
        indices = {array: first + n for n, array in enumerate(self.nullable)}
        return [
            Copy(in_array, in_message._replace(array=indices[in_message.array]))
            for in_array, in_message in self.blocks
            if in_message.array in indices
        ]


class Stages(NamedTuple):
    """The three stages of an exchange."""

    #: Copies that append the messages to be sent and, unless they are a transpose, the old
    #: values of blocks that may stay as they are.
    before: CopyList
    sent: MessageArrays
    received: MessageArrays
    #: Copies that take the messages that have arrived, and drop them.
    after: CopyList


@dataclass(frozen=True)
class Description:
    """Blocks of arrays that a process sends, receives, and copies itself.

    The operands of an exchange are the arrays; a table of rows, if blocks have listed rows;
    and the ranks that the program computes, if there are any. The results are the arrays
    with the blocks received, or new arrays that consist of these.
    """

    #: Types of the arrays, without the axes of a batch.
    arrays: tuple[ShapedArray, ...]
    #: Messages with blocks of the arrays.
    sent: tuple[Message, ...]
    #: Messages with blocks of the results.
    received: tuple[Message, ...]
    #: Copies from arrays to results, stage after stage, after all messages have arrived.
    local: tuple[tuple[Copy, ...], ...] = ()
    #: Types of new arrays, or None if the results are the arrays themselves. Each element
    #: of new arrays is in one block, and each element of the arrays is sent at most once.
    new: tuple[ShapedArray, ...] | None = None
    #: Whether this is the transpose of what the other fields describe. Only an exchange in
    #: place is: the transpose of an exchange with new arrays has such arrays, too.
    is_transposed: bool = False

    @property
    def results(self) -> tuple[ShapedArray, ...]:
        """Types of the results, without the axes of a batch."""
        return self.arrays if self.new is None else self.new

    def ranks(self) -> list[int]:
        """Ranks of the other processes, or parameters of computed ranks."""
        return [message.rank for message in (*self.sent, *self.received)]

    @property
    def has_table(self) -> bool:
        """Whether an operand is a table of rows."""
        views = itertools.chain(
            *(message.blocks for message in (*self.sent, *self.received)),
            *itertools.chain(*self.local),
        )
        return any(view.rows is not None for view in views)

    def dynamic_operands(self, table: Sequence[X], ranks: Sequence[X]) -> list[X]:
        """The operands behind the arrays, from a table and computed ranks."""
        ranks = ranks if any(map(is_computed, self.ranks())) else ()
        return [*(table if self.has_table else ()), *ranks]

    def split_dynamic(self, others: Sequence[X]) -> tuple[Sequence[X], Sequence[X]]:
        """The table and the computed ranks, from the operands behind the arrays."""
        return others[: self.has_table], others[self.has_table :]

    def batch_shape(self, arrays: Sequence[Shaped]) -> tuple[int, ...]:
        """Sizes of the leading axes of a call's arrays, which belong to batches."""
        first = next(iter(self.arrays), None)
        return () if first is None else arrays[0].shape[: len(arrays[0].shape) - first.ndim]

    def transposed(self) -> Description:
        """Description of the transposed exchange."""
        if self.new is None:
            return replace(self, is_transposed=not self.is_transposed)
        local = [[Copy(b, a) for a, b in stage] for stage in reversed(self.local)]
        return replace(
            self,
            arrays=self.new,
            sent=self.received,
            received=self.sent,
            local=tuple(map(tuple, local)),
            new=self.arrays,
        )

    def on_inexact_arrays(self) -> Description:
        """The exchange of only the arrays that have derivatives."""
        is_array_kept, is_result_kept = (
            list(map(is_inexact, types)) for types in (self.arrays, self.results)
        )
        local = [
            [
                Copy(
                    copy.source.among(is_array_kept),
                    copy.result.among(is_result_kept),
                )
                for copy in stage
                if is_array_kept[copy.source.array]
            ]
            for stage in self.local
        ]
        return replace(
            self,
            arrays=tuple(filter(is_inexact, self.arrays)),
            sent=_with_arrays(self.sent, is_array_kept),
            received=_with_arrays(self.received, is_result_kept),
            local=tuple(map(tuple, local)),
            new=None if self.new is None else tuple(filter(is_inexact, self.new)),
        )

    @functools.cached_property
    def stages(self) -> Stages:
        """The three stages of the exchange, or of its transpose."""
        count = len(self.arrays)
        sent = MessageArrays(self.sent, self.arrays, count)
        received = MessageArrays(self.received, self.results, count)
        packing = list(itertools.starmap(Copy, sent.blocks))
        appended, dropped, shift = sent.types, received.types, 0
        if self.new is None:
            packing += received.nullable_copies(count + len(sent.types))
            appended = [*sent.types, *received.nullable_types]
        else:
            dropped, shift = [], count + len(received.types)
        packing.sort(key=lambda copy: copy.source.array)
        first, *local = (
            [Copy(a, b._replace(array=b.array + shift)) for a, b in stage]
            for stage in ([Copy(b, a) for a, b in received.blocks], *self.local)
        )
        first.sort(key=lambda copy: copy.result.array)
        before = CopyList((tuple(packing),), appended=tuple(appended))
        after = CopyList(
            tuple(map(tuple, (first, *local))),
            appended=self.new or (),
            dropped=tuple(dropped),
        )
        if self.is_transposed:
            return Stages(after.transpose(), received, sent, before.transpose())
        return Stages(before, sent, received, after)

    def with_batch(
        self, types: Sequence[ShapedArray], arrays: Sequence[ShapedArray]
    ) -> list[ShapedArray]:
        """Types with the axes of batches that the arrays of a call have."""
        batch_shape = self.batch_shape(arrays)
        return [like(x, (*batch_shape, *x.shape)) for x in types]


def _with_arrays(
    messages: Sequence[Message], is_kept: Sequence[bool]
) -> tuple[Message, ...]:
    """Messages with only the blocks of some arrays. Messages without any are left out."""
    selected = []
    for message in messages:
        views = [view.among(is_kept) for view in message.blocks if is_kept[view.array]]
        if views:
            selected.append(message._replace(blocks=tuple(views)))
    return tuple(selected)
