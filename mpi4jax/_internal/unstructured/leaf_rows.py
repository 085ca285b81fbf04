"""Rows of many arrays, of any types, in one message to each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.dtypes import avals_of, carrier_aval
from ..arguments.types import Array, DType, Shaped
from ..layout.packing import as_words, from_words, word_of
from ..operations._arguments import bytes_of_a_row, like
from ..operations._leaves import LeafOperation
from ..operations._lowering import call_in_program
from ..operations._ragged import first_rows
from ..operations._rules import as_primitive
from ..operations._transposes import (
    Cotangents,
    Jvp,
    inexact_tangents,
    tangents_of,
)
from ..xla.jax_compat import (
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    convert,
    lower_with,
)


@as_primitive
@dataclass(frozen=True)
class LeafRows(LeafOperation):
    """A migration of rows of all operands but the last two, which are the row counts.

    As in `exchange`, JAX knows the leaves, and the handler has one array, which the program
    packs and unpacks around the call. Rows behind the received ones are undefined.
    """

    #: Number of rows of each result.
    capacity: int

    name = "migrate"
    operands = ("particles",)
    count_operands = 2

    @override
    def result_avals(self, *avals: ShapedArray) -> list[ShapedArray]:
        leaves, _ = self.split_operands(avals)
        return [like(leaf, (self.capacity, *leaf.shape[1:])) for leaf in leaves]

    @override
    def batch_axes(self) -> tuple[int, int]:
        return 1, 1

    @override
    def lower(self, ctx: LoweringContext, *operands: Value) -> Sequence[Value]:
        types, count_types = self.split_operands(ctx.avals_in)
        values, counts = self.split_operands(operands)
        carriers = list(map(carrier_aval, types))
        results = list(map(carrier_aval, ctx.avals_out))
        packed, received = _packed_aval(carriers), _packed_aval(results)
        arrays = list(map(convert, values, carriers))
        arrays = lower_with(ctx, _pack, arrays, carriers)
        arrays = call_in_program(
            ctx,
            self.communicator,
            "alltoallv_rows",
            [*arrays, *counts],
            self.attributes(),
            avals_in=[packed, *count_types],
            avals_out=[received],
        )

        def unpack(words: Array) -> list[Array]:
            return _unpack(words, results)

        leaves = lower_with(ctx, unpack, arrays, [received])
        return list(map(convert, leaves, ctx.avals_out))

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        results = self.bind(*primals)
        _, counts = self.split_operands(primals)
        pushed = inexact_tangents(primals, tangents)
        if pushed:
            pushed = self.bind(*pushed, *counts)
        return results, tangents_of(results, pushed)

    @override
    def transpose(
        self,
        cotangents: Sequence[Array],
        types: Sequence[Shaped],
        numbers: Sequence[Array],
    ) -> Cotangents:
        sendcounts, recvcounts = numbers
        back = LeafRows(self.communicator, capacity=types[0].shape[0])
        returned = back.bind(*cotangents, recvcounts, sendcounts)
        return [first_rows(x, sendcounts.sum()) for x in returned]


def _width(aval: ShapedArray, word: DType) -> int:
    """Number of words of a row."""
    return bytes_of_a_row(aval) // word.itemsize


def _packed_aval(avals: Sequence[ShapedArray]) -> ShapedArray:
    word = word_of([aval.dtype for aval in avals])
    width = sum(_width(aval, word) for aval in avals)
    return ShapedArray((avals[0].shape[0], width), word)


def _pack(*arrays: Array) -> list[Array]:
    word = word_of([x.dtype for x in arrays])
    rows = arrays[0].shape[0]
    parts = [
        as_words(x, word).reshape(rows, _width(aval, word))
        for x, aval in zip(arrays, avals_of(arrays), strict=True)
    ]
    return [jnp.concatenate(parts, 1)]


def _unpack(words: Array, avals: Sequence[ShapedArray]) -> list[Array]:
    results, end = [], 0
    for aval in avals:
        start, end = end, end + _width(aval, words.dtype)
        part = jax.lax.slice_in_dim(words, start, end, axis=1)
        results.append(from_words(part, aval.shape, aval.dtype))
    return results
