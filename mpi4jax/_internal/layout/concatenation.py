"""Concatenate many arrays along the last axis, and split them again.

XLA compiles a loop for each array that is concatenated, and a call for each part that is
cut out. On CPUs, the core copies all of them in one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from ..arguments.dtypes import has_carrier
from ..arguments.types import Array
from ..xla.effects import custom_call_target
from ..xla.jax_compat import (
    LoweringContext,
    Results,
    ShapedArray,
    Tangent,
    UndefinedPrimal,
    Value,
    VaryingPrimitive,
    ad,
    batching,
    def_eager,
    ffi_lowering,
    lower_function,
    register_lowering,
)

#: Fewer arrays than this are left to XLA, which can fuse them with what computes them.
MANY = 4


def concatenate(arrays: Sequence[Array]) -> Array:
    """One array of arrays that have one type and differ in their last axis at most."""
    # XLA aborts in its compiler where empty ones are among them.
    arrays = [x for x in arrays if x.shape[-1]] or arrays[:1]
    if len(arrays) == 1:
        return arrays[0]
    if _are_few(arrays, arrays[0]):
        return jnp.concatenate(arrays, -1)
    return concatenate_p.bind(*arrays)


def split(x: Array, sizes: Sequence[int]) -> Sequence[Array]:
    """The parts of these sizes of an array, along its last axis."""
    if 0 in sizes:
        remaining = iter(split(x, [size for size in sizes if size]))
        return [next(remaining) if size else _empty(x) for size in sizes]
    if len(sizes) == 1:
        return [x]
    if _are_few(sizes, x):
        return _split(x, sizes=tuple(sizes))
    return split_p.bind(x, sizes=tuple(sizes))


def _empty(x: Array) -> Array:
    return jnp.zeros((*x.shape[:-1], 0), x.dtype)


def _are_few(parts: Sequence[object], x: Array) -> bool:
    return len(parts) < MANY or has_carrier(x)


def _split(x: Array, *, sizes: tuple[int, ...]) -> list[Array]:
    ends = itertools.accumulate(sizes)
    pairs = zip(ends, sizes, strict=True)
    return [jax.lax.slice_in_dim(x, end - size, end, axis=-1) for end, size in pairs]


concatenate_p: VaryingPrimitive[Array] = VaryingPrimitive("concatenate_mpi")
split_p: VaryingPrimitive[list[Array]] = VaryingPrimitive("split_mpi")
split_p.multiple_results = True


@concatenate_p.def_abstract_eval
def _type_of_concatenated(*avals: ShapedArray) -> ShapedArray:
    *rows, _ = avals[0].shape
    return ShapedArray((*rows, sum(x.shape[-1] for x in avals)), avals[0].dtype)


@split_p.def_abstract_eval
def _types_of_parts(aval: ShapedArray, *, sizes: tuple[int, ...]) -> list[ShapedArray]:
    return [ShapedArray((*aval.shape[:-1], size), aval.dtype) for size in sizes]


def _transpose_concatenate(cotangent: Array, *operands: UndefinedPrimal) -> Sequence[Array]:
    return split(cotangent, [x.aval.shape[-1] for x in operands])


def _transpose_split(
    cotangents: Sequence[Tangent], _: UndefinedPrimal, *, sizes: tuple[int, ...]
) -> list[Array]:
    return [concatenate(list(map(ad.instantiate_zeros, cotangents)))]


def _batch_concatenate(
    operands: Sequence[Array], axes: Sequence[int | None]
) -> tuple[Array, int]:
    pairs = list(zip(operands, axes, strict=True))
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    moved = [batching.bdim_at_front(x, axis, size) for x, axis in pairs]
    return concatenate(moved), 0


def _batch_split(
    operands: Sequence[Array], axes: Sequence[int], *, sizes: tuple[int, ...]
) -> tuple[Sequence[Array], list[int]]:
    (x,), (axis,) = operands, axes
    return split(jnp.moveaxis(x, axis, 0), sizes), [0] * len(sizes)


def _register(
    primitive: VaryingPrimitive[Results],
    name: str,
    function: Callable[..., Results],
    transpose: Callable[..., Sequence[Array]],
    batch: Callable[..., tuple[Results, int | list[int]]],
) -> None:
    def lower(ctx: LoweringContext, *operands: Value, **_: object) -> Sequence[Value]:
        return ffi_lowering(custom_call_target(name))(ctx, *operands)

    def_eager(primitive)
    ad.deflinear2(primitive, transpose)
    batching.primitive_batchers[primitive] = batch
    register_lowering(primitive, lower, platform="cpu")
    elsewhere = lower_function(function, multiple_results=primitive.multiple_results)
    register_lowering(primitive, elsewhere)


_register(
    concatenate_p,
    "concatenate",
    lambda *arrays: jnp.concatenate(arrays, -1),
    _transpose_concatenate,
    _batch_concatenate,
)
_register(split_p, "split", _split, _transpose_split, _batch_split)
