"""Operations whose result is one value that all processes share.

Let each process r compute its loss f(y) from y = sum_q x_q, the result of an allreduce.
Taken as a linear map from all x_q to all results y_r = y, the operation has the transpose

    ct(x_q) = sum_r ct(y_r),

another allreduce. But all processes go on with the same computation, so each of them has
the same ct(y) = df/dy. The sum would be the gradient of `size` losses, of which there is
one. As y is one value, with one cotangent, the gradient is

    ct(x_q) = (dy/dx_q)^T ct(y) = ct(y),

which each process has already: nothing is sent. (docs/autodiff.md says so to users.)

This map from ct(y) to ct(x_q) is a primitive, :class:`SharedTranspose`, so that it can be
transposed itself. Its results, unlike y, differ from process to process: they are gradients
with respect to the x_q. So its transpose is the true one, from cotangents ct(ct(x_q)):

    ct(ct(y)) = sum_q (dy/dx_q) ct(ct(x_q)),

which is the operation again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..xla.jax_compat import (
    ShapedArray,
    VaryingPrimitive,
    ad,
    batching,
    lower_function,
    register_lowering,
)
from ._batching import batch_one_by_one
from .primitive import Operation


class SharedOperation(Operation):
    """An operation whose result is one value that all processes share.

    With the parameter `shared=False`, which derivatives of other operations pass, each
    process has a cotangent of its own for the result.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared_transpose = SharedTranspose(self)

    def own_cotangent(self, cotangent: Any, *counts: Any, **params: Any) -> Any:
        """The cotangent of this process's operand, from that of the shared result."""
        raise NotImplementedError

    def transpose_unshared(self, *args: Any, **params: Any) -> Any:
        """As :meth:`transpose`, with cotangents of each process's own."""
        raise NotImplementedError

    def transpose(self, cotangent: Any, *operands: Any, **params: Any) -> Any:
        if not params.get("shared", True):
            return self.transpose_unshared(cotangent, *operands, **params)
        counts = operands[len(operands) - self.count_operands :]
        transposed = self._shared_transpose.primitive.bind(cotangent, *counts, **params)
        return transposed, *(None for _ in counts)


class SharedTranspose:
    """The map from the cotangent of a shared result to that of a process's operand."""

    def __init__(self, operation: SharedOperation) -> None:
        self._operation = operation
        self.primitive = VaryingPrimitive(f"{operation.name}_transpose_mpi")
        self.primitive.def_impl(operation.own_cotangent)
        self.primitive.def_abstract_eval(self._abstract_eval)
        register_lowering(self.primitive, lower_function(operation.own_cotangent))
        ad.primitive_jvps[self.primitive] = self._jvp
        ad.primitive_transposes[self.primitive] = self._transpose
        batching.primitive_batchers[self.primitive] = self._batch

    def _abstract_eval(self, *avals: Any, **params: Any) -> ShapedArray:
        function = functools.partial(self._operation.own_cotangent, **params)
        return ShapedArray(jax.eval_shape(function, *avals).shape, avals[0].dtype)

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        bind = functools.partial(self.primitive.bind, **params)
        return bind(*primals), bind(ad.instantiate_zeros(tangents[0]), *primals[1:])

    def _transpose(self, cotangent: Any, _: Any, *counts: Any, **params: Any) -> list[Any]:
        cotangent = ad.instantiate_zeros(cotangent)
        result = self._operation.apply(cotangent, *counts, **params)
        return [result, *(None for _ in counts)]

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        bind = functools.partial(self.primitive.bind, **params)
        if any(axis is not None for axis in axes[1:]):
            return batch_one_by_one(bind, operands, axes)
        # The axes of the operation, in the other direction.
        operand_axis, result_axis = self._operation.batch_axes(**params)
        moved = jnp.moveaxis(operands[0], axes[0], result_axis)
        return bind(moved, *operands[1:]), operand_axis
