"""Operations whose result is one value that all processes share.

Let each process r compute its loss f(y) from y = sum_q x_q, the result of an allreduce.
Taken as a linear map from all x_q to all results y_r = y, the operation has the transpose

    ct(x_q) = sum_r ct(y_r),

another allreduce. But all processes go on with the same computation, so each of them has
the same ct(y) = df/dy. The sum would be the gradient of `size` losses, of which there is
one. As y is one value, with one cotangent, the gradient is

    ct(x_q) = (dy/dx_q)^T ct(y) = ct(y),

which each process has already: nothing is sent. (docs/autodiff.md says so to users.)

This map from ct(y) to ct(x_q) is a primitive, `shared_transpose_p`, so that it can be
transposed itself. Its results, unlike y, differ from process to process: they are gradients
with respect to the x_q. So its transpose is the true one, from cotangents ct(ct(x_q)):

    ct(ct(y)) = sum_q (dy/dx_q) ct(ct(x_q)),

which is the operation again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Shaped
from ..xla.jax_compat import (
    ShapedArray,
    Tangent,
    UndefinedPrimal,
    VaryingPrimitive,
    ad,
    batching,
    has_types_of_axes,
    lower_function,
    register_lowering,
)
from ._batching import batch_at, batch_one_by_one
from ._operation import Operation
from ._transposes import Cotangents


@dataclass(frozen=True)
class SharedOperation(Operation):
    """An operation whose result is one value that all processes share."""

    #: Whether the cotangent of the result counts once. Else each process has a cotangent of
    #: its own, as in derivatives of other operations.
    shared: bool = field(default=True, kw_only=True)

    is_same_everywhere = True
    unlowered: ClassVar[tuple[str, ...]] = ("shared",)

    def own_cotangent(self, cotangent: Array, *numbers: Array) -> Array:
        """The cotangent of this process's operand, from the shared result's cotangent."""
        raise NotImplementedError

    @override
    def with_varying(
        self, operands: Sequence[ArrayLike]
    ) -> tuple[SharedOperation, list[Array]]:
        # In a program on a mesh, JAX either knows that the result is one value, or takes
        # the values of all processes for different ones.
        _, varying = super().with_varying(operands)
        is_typed = has_types_of_axes(varying[0], self.communicator.axes)
        return replace(self, shared=is_typed), varying

    @override
    def transpose(
        self,
        cotangents: Sequence[Array],
        types: Sequence[Shaped],
        numbers: Sequence[Array],
    ) -> Cotangents:
        if not self.shared:
            return super().transpose(cotangents, types, numbers)
        (cotangent,) = cotangents
        if self.communicator.axes:
            # JAX transposes this to a sum over the processes, as it does the types.
            return [self.own_cotangent(self.vary(cotangent), *numbers)]
        return [shared_transpose_p.bind(cotangent, *numbers, operation=self)]


def _own_cotangent(cotangent: Array, *counts: Array, operation: SharedOperation) -> Array:
    return operation.own_cotangent(cotangent, *counts)


def _abstract_eval(
    cotangent: ShapedArray, *counts: ShapedArray, operation: SharedOperation
) -> ShapedArray:
    shape = jax.eval_shape(operation.own_cotangent, cotangent, *counts).shape
    return ShapedArray(shape, cotangent.dtype)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Tangent], *, operation: SharedOperation
) -> tuple[Array, Array]:
    tangent, counts = ad.instantiate_zeros(tangents[0]), primals[1:]
    return (
        shared_transpose_p.bind(*primals, operation=operation),
        shared_transpose_p.bind(tangent, *counts, operation=operation),
    )


def _transpose(
    cotangent: Tangent,
    _: UndefinedPrimal,
    *counts: Array,
    operation: SharedOperation,
) -> list[Array | None]:
    result = operation.apply(ad.instantiate_zeros(cotangent), *counts)
    return [result, *(None for _ in counts)]


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, operation: SharedOperation
) -> tuple[Array, int]:
    def bind(*operands: Array) -> Array:
        return shared_transpose_p.bind(*operands, operation=operation)

    if any(axis is not None for axis in axes[1:]):
        return batch_one_by_one(bind, operands, axes), 0
    # The axes of the operation, in the other direction.
    operand_axis, result_axis = operation.batch_axes()
    moved = batch_at(result_axis, operands[:1], axes[:1])
    return bind(*moved, *operands[1:]), operand_axis


#: The map from the cotangent of a shared result to the cotangent of a process's operand.
shared_transpose_p: VaryingPrimitive[Array] = VaryingPrimitive("shared_transpose_mpi")
shared_transpose_p.def_impl(_own_cotangent)
shared_transpose_p.def_abstract_eval(_abstract_eval)
register_lowering(shared_transpose_p, lower_function(_own_cotangent))
ad.primitive_jvps[shared_transpose_p] = _jvp
ad.primitive_transposes[shared_transpose_p] = _transpose
batching.primitive_batchers[shared_transpose_p] = _batch
