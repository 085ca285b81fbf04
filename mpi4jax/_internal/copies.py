"""Copies of parts of arrays, all in one call of the core, on CPUs.

XLA would compile a kernel for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .bridge import custom_call_target
from .jax_compat import Primitive, ShapedArray, ffi_lowering, register_lowering


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


copy_p = Primitive("copy_mpi")
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
    types = [ShapedArray(x.shape, x.dtype) for x in arrays]
    return _copied(arrays, sources, types, copies)


def _copied(
    arrays: Sequence[Any],
    sources: Sequence[Any],
    types: Sequence[ShapedArray],
    copies: Sequence[Copy],
) -> list[Any]:
    numbers = tuple(
        n for copy in copies if 0 not in copy.source.sizes for n in copy.numbers()
    )
    found: list[Any] = copy_p.bind(
        *arrays, *sources, updated=len(arrays), types=tuple(types), copies=numbers
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
