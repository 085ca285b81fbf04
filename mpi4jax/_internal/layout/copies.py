"""Copies of parts of arrays, all in one call of the core, on CPUs.

XLA would compile a kernel for each of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import avals_of
from ..xla.effects import custom_call_target
from ..xla.jax_compat import ShapedArray, VaryingPrimitive, ffi_lowering, register_lowering
from .concatenation import concatenate


class View(NamedTuple):
    """A part of an array."""

    #: Which one of the arrays it is.
    place: int
    #: The shape of what it is a part of, and where that begins, in elements.
    shape: tuple[int, ...]
    start: int
    #: The part, a range of each axis.
    parts: tuple[slice, ...]

    @property
    def sizes(self) -> list[int]:
        return [part.stop - part.start for part in self.parts]

    @property
    def strides(self) -> list[int]:
        of_inner_axes = itertools.accumulate(
            self.shape[:0:-1], lambda a, b: a * b, initial=1
        )
        return list(of_inner_axes)[::-1]

    @property
    def offset(self) -> int:
        steps = (p.start * n for p, n in zip(self.parts, self.strides, strict=True))
        return self.start + sum(steps)


class Copy(NamedTuple):
    """Where a part comes from, among the sources, and where it goes among the results."""

    source: View
    result: View

    def moved(self, *, source: int = 0, result: int = 0) -> Copy:
        """The same, where all sources or results are so many places further."""
        ends = zip(self, (source, result), strict=True)
        return Copy(*(view._replace(place=view.place + n) for view, n in ends))

    @property
    def is_empty(self) -> bool:
        return 0 in self.source.sizes

    def numbers(self) -> list[int]:
        """What the core is told: the places, and loops with sizes and strides."""
        assert self.source.sizes == self.result.sizes
        loops: list[tuple[int, int, int]] = []
        for size, source, result in zip(
            self.source.sizes, self.source.strides, self.result.strides, strict=True
        ):
            if size == 1:
                continue
            if loops and loops[-1][1:] == (size * source, size * result):
                size *= loops.pop()[0]
            loops.append((size, source, result))
        ends = [(view.place, view.offset) for view in self]
        return [*ends[0], *ends[1], len(loops), *itertools.chain(*loops)]


def _numbers(copies: Sequence[Copy]) -> tuple[int, ...]:
    return tuple(n for copy in copies if not copy.is_empty for n in copy.numbers())


copy_p = VaryingPrimitive("copy_mpi")
copy_p.multiple_results = True


def taken(
    sources: Sequence[Any], types: Sequence[ShapedArray], copies: Sequence[Copy]
) -> list[Any]:
    """New arrays, every element of which is copied from the sources."""
    return _copied([], sources, types, copies)


def put(arrays: Sequence[Any], sources: Sequence[Any], copies: Sequence[Copy]) -> list[Any]:
    """Arrays with some parts copied from the sources, in place if XLA can have it so.

    The arrays themselves, as they are by then, are further sources, behind the others.
    """
    return _copied(arrays, sources, avals_of(arrays), copies)


def _copied(
    arrays: Sequence[Any],
    sources: Sequence[Any],
    types: Sequence[ShapedArray],
    copies: Sequence[Copy],
) -> list[Any]:
    found: list[Any] = copy_p.bind(
        *arrays,
        *sources,
        updated=len(arrays),
        types=tuple(types),
        copies=_numbers(copies),
    )
    return found


@copy_p.def_abstract_eval
def _types(*_: Any, types: tuple[ShapedArray, ...], **__: Any) -> list[ShapedArray]:
    return list(types)


def _lower(
    ctx: Any, *operands: Any, updated: int, copies: tuple[int, ...], **_: Any
) -> Any:
    rule = ffi_lowering(
        custom_call_target("copy"), operand_output_aliases={n: n for n in range(updated)}
    )
    return rule(
        ctx, *operands, updated=np.int64(updated), copies=np.array(copies, np.int64)
    )


register_lowering(copy_p, _lower, platform="cpu")


#: The types that the core can add.
ADDED = frozenset(("float32", "float64", "complex64", "complex128"))

give_back_p = VaryingPrimitive("give_back_mpi")
give_back_p.multiple_results = True


def given_back(arrays: Sequence[Any], copies: Sequence[Copy]) -> list[Any]:
    """The transpose of copies between arrays, in place if XLA can have it so.

    From the last copy to the first, what is where it would go is added to what is where it
    would come from, and leaves zeros.
    """
    found: list[Any] = give_back_p.bind(*arrays, copies=_numbers(copies))
    return found


def given_back_by_xla(arrays: Sequence[Any], copies: Sequence[Copy]) -> list[Any]:
    """The same without the core.

    What two views are parts of must be one piece of an array, or have nothing in common.
    """
    pieces = list(map(_Pieces, arrays))
    for copy in reversed(copies):
        if copy.is_empty:
            continue
        source, result = pieces[copy.source.place], pieces[copy.result.place]
        given = result.read(copy.result)
        result.write(copy.result, jnp.zeros_like(given))
        source.write(copy.source, source.read(copy.source) + given)
    return [piece.together() for piece in pieces]


class _Pieces:
    """An array, in the pieces that views are parts of."""

    def __init__(self, x: Any) -> None:
        self.x = x
        #: By where they begin.
        self.found: dict[int, Any] = {}

    def _piece(self, view: View) -> Any:
        if view.start not in self.found:
            x = self.x
            if view.shape != x.shape:
                end = view.start + math.prod(view.shape)
                x = x[view.start : end].reshape(view.shape)
            self.found[view.start] = x
        return self.found[view.start]

    def read(self, view: View) -> Any:
        return self._piece(view)[view.parts]

    def write(self, view: View, part: Any) -> None:
        starts = [one.start for one in view.parts]
        piece = self._piece(view)
        if part.shape != piece.shape:
            part = jax.lax.dynamic_update_slice(piece, part, starts)
        self.found[view.start] = part

    def together(self) -> Any:
        if not self.found:
            return self.x
        if self.x.ndim != 1:
            return self.found[0]
        parts, end = [], 0
        for start, piece in sorted(self.found.items()):
            parts += [self.x[end:start], piece.ravel()]
            end = start + piece.size
        return concatenate([*parts, self.x[end:]])


give_back_p.def_abstract_eval(lambda *avals, **_: avals_of(avals))


def _lower_give_back(ctx: Any, *operands: Any, copies: tuple[int, ...]) -> Any:
    aliases = {n: n for n in range(len(operands))}
    rule = ffi_lowering(custom_call_target("give_back"), operand_output_aliases=aliases)
    return rule(ctx, *operands, copies=np.array(copies, np.int64))


register_lowering(give_back_p, _lower_give_back, platform="cpu")
