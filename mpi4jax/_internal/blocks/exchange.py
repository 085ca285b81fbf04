"""Exchange of blocks of arrays between processes, as one primitive.

An exchange has three stages: blocks of the arrays are copied into messages, the messages
are sent and received, and the blocks of messages that arrive are copied to their places.
All that differs between halos, index lists and redistribution is which blocks these are, as
a :class:`~.description.Description` says.

Each stage is a linear function, and so the transpose of an exchange has the transposes of
its stages in the reverse order. A batch is one more axis of all arrays and messages.

On CPUs, the three stages are one call of the core (:mod:`.one_call`). Elsewhere, XLA
compiles slices and updates around a call that sends and receives the messages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.types import Array, Shaped
from ..operations._alone import sources_alone
from ..operations._computed import where_null
from ..operations._leaves import LeafOperation
from ..operations._rules import as_primitive, lower
from ..operations._transposes import (
    Cotangents,
    Jvp,
    inexact_tangents,
    tangents_of,
)
from ..operations.exchange import Exchange
from ..xla.jax_compat import (
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    lower_part,
    lower_with,
    register_lowering,
)
from .copies import CopyList
from .description import Description
from .one_call import OneCall

X = TypeVar("X")


@as_primitive
@dataclass(frozen=True)
class BlockExchange(LeafOperation):
    """Exchange of blocks of arrays."""

    description: Description

    name = "exchange_blocks"
    operands = ("fields",)
    is_collective = False

    def call(
        self,
        arrays: Sequence[Array],
        table: Sequence[Array] = (),
        ranks: Sequence[Array] = (),
    ) -> list[Array]:
        """Results of the exchange.

        Arguments:
            arrays: The arrays.
            table: The table of rows, which an exchange without listed rows ignores.
            ranks: The ranks that the program computes, if there are any.

        """
        description = self.description
        if not (description.sent or description.received or description.new):
            # Other processes know nothing of it.
            copies = CopyList(description.local)
            copies = copies.transpose() if description.is_transposed else copies
            return copies.apply(arrays, table)
        return self.bind(*self.operands_of(arrays, table, ranks))

    def operands_of(
        self,
        arrays: Sequence[Array],
        table: Sequence[Array] = (),
        ranks: Sequence[Array] = (),
    ) -> list[Array]:
        """The operands of the primitive."""
        return [*arrays, *self.description.dynamic_operands(table, ranks)]

    def transposed(self) -> BlockExchange:
        return replace(self, description=self.description.transposed())

    @override
    def ranks(self) -> Sequence[int]:
        return self.description.ranks()

    @override
    def split_operands(self, operands: Sequence[X]) -> tuple[Sequence[X], Sequence[X]]:
        count = len(self.description.arrays)
        return operands[:count], operands[count:]

    # The stages.

    def messages_only(self) -> Exchange:
        """The second stage: it takes and gives the arrays of messages."""
        stages = self.description.stages
        sent, received = stages.sent.messages, stages.received.messages
        return Exchange(self.communicator, sent, received)

    def pack(self, operands: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Carry out the first stage.

        Returns:
            Arrays for :meth:`unpack`, and the operands of :meth:`messages_only`.

        """
        description, stages = self.description, self.description.stages
        arrays, others = self.split_operands(operands)
        batch_shape = description.batch_shape(arrays)
        table, ranks = description.split_dynamic(others)
        results = stages.before.apply(arrays, table, len(batch_shape))
        packed, messages = results[: len(arrays)], results[len(arrays) :]

        def zeros(x: ShapedArray) -> Array:
            return jnp.zeros((*batch_shape, *x.shape), x.dtype)

        if description.is_transposed:
            # What PROC_NULL does not receive belongs to the blocks as they were.
            packed += [
                where_null(rank, ranks, message, jnp.zeros_like(message))
                for rank, message, may_be_null in zip(
                    stages.sent.messages.ranks_of_leaves(),
                    messages,
                    stages.sent.may_be_null,
                    strict=True,
                )
                if may_be_null
            ]
            return packed, [*messages, *map(zeros, stages.received.types), *ranks]
        sent_count = len(stages.sent.types)
        messages, old = messages[:sent_count], iter(messages[sent_count:])
        buffers = [
            next(old) if may_be_null and description.new is None else zeros(x)
            for may_be_null, x in zip(
                stages.received.may_be_null, stages.received.types, strict=True
            )
        ]
        return [], [*messages, *buffers, *ranks]

    def unpack(
        self, packed: Sequence[Array], arrived: Sequence[Array], operands: Sequence[Array]
    ) -> list[Array]:
        """Carry out the third stage.

        Arguments:
            packed: The arrays that :meth:`pack` has given.
            arrived: The results of :meth:`messages_only`.
            operands: The operands of the exchange. Unless it is a transpose, the arrays
                among them may have been changed since :meth:`pack`.

        Returns:
            The results of the exchange.

        """
        description = self.description
        arrays, others = self.split_operands(operands)
        count, batch = len(arrays), len(description.batch_shape(arrays))
        table, _ = description.split_dynamic(others)
        if description.is_transposed:
            arrays = packed[:count]
        arrays = [*arrays, *arrived, *packed[count:]]
        results = description.stages.after.apply(arrays, table, batch)
        return results if description.new is None else results[-len(description.new) :]

    # The rules.

    @override
    def result_avals(self, *avals: ShapedArray) -> list[ShapedArray]:
        arrays, _ = self.split_operands(avals)
        return self.description.with_batch(self.description.results, arrays)

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        results = self.bind(*primals)
        arrays, others = self.split_operands(primals)
        inexact = inexact_tangents(arrays, tangents[: len(arrays)])
        if not inexact:
            return results, tangents_of(results, [])
        pushed = replace(self, description=self.description.on_inexact_arrays()).call(
            inexact, *self.description.split_dynamic(others)
        )
        return results, tangents_of(results, pushed)

    @override
    def transpose(
        self,
        cotangents: Sequence[Array],
        types: Sequence[Shaped],
        numbers: Sequence[Array],
    ) -> Cotangents:
        return self.transposed().bind(*cotangents, *numbers)

    @override
    def lower(self, ctx: LoweringContext, *operands: Value) -> Sequence[Value]:
        description, stages = self.description, self.description.stages
        arrays, others = self.split_operands(ctx.avals_in)
        packed_types: list[ShapedArray] = []
        if description.is_transposed:
            packed_types = [*description.arrays, *stages.sent.nullable_types]
        packed_avals, sent_avals, received_avals = (
            description.with_batch(types, arrays)
            for types in (packed_types, stages.sent.types, stages.received.types)
        )

        def pack(*operands: Array) -> list[Array]:
            return list(itertools.chain(*self.pack(operands)))

        def unpack(*values: Array) -> list[Array]:
            return self.unpack(*_split_at(values, len(packed_avals), len(received_avals)))

        values = lower_with(ctx, pack, operands, ctx.avals_in)
        packed, messages = values[: len(packed_avals)], values[len(packed_avals) :]
        _, rank_avals = description.split_dynamic(others)
        arrived = lower_part(
            ctx,
            functools.partial(lower, operation=self.messages_only()),
            messages,
            avals_in=[*sent_avals, *received_avals, *rank_avals],
            avals_out=received_avals,
        )
        avals = [*packed_avals, *received_avals, *ctx.avals_in]
        return lower_with(ctx, unpack, [*packed, *arrived, *operands], avals)


def _split_at(values: Sequence[X], *counts: int) -> tuple[Sequence[X], ...]:
    """Values in parts of these lengths, and the rest."""
    ends = [0, *itertools.accumulate(counts)]
    return tuple(values[start:end] for start, end in itertools.zip_longest(ends, ends[1:]))


def _lower_for_cpu(
    ctx: LoweringContext, *operands: Value, operation: BlockExchange
) -> Sequence[Value]:
    call = OneCall(operation.description, ctx.avals_in)
    has_messages = sources_alone(ctx, operation.messages_only()) is None
    if not (has_messages and call.is_for_core):
        return operation.lower(ctx, *operands)
    return call.lower(ctx, operation.communicator, operands)


register_lowering(BlockExchange.primitive, _lower_for_cpu, platform="cpu")
