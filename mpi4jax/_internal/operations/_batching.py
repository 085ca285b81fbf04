"""A batch of an operation's operands travels in one message.

An operation moves blocks of memory between processes, and reduces them element by element.
So the operation on a batch is the operation on larger blocks: all that has to be known is
where in the buffers the batch must stand for each block to contain its part of it
(:meth:`Declaration.batch_axes`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._declaration import Declaration


def batch(
    operation: Declaration, operands: Sequence[Any], axes: Sequence[Any], **params: Any
) -> Any:
    """The results of a batch of operands, and the axes at which they have the batch.

    The batch axis has one position for all processes. Otherwise, what one process sends
    would not be what another one expects, as they trace the program separately.
    """
    operation.check_batch(axes, **params)
    bind = functools.partial(operation.primitive.bind, **params)
    first_count = len(operands) - operation.count_operands
    if any(axis is not None for axis in axes[first_count:]):
        return batch_one_by_one(bind, operands, axes)
    operand_axis, result_axis = operation.batch_axes(**params)
    arrays = list(zip(operands[:first_count], axes[:first_count], strict=True))
    size = next(x.shape[axis] for x, axis in arrays if axis is not None)
    moved = [batch_at(operand_axis, size, x, axis) for x, axis in arrays]
    results = bind(*moved, *operands[first_count:])
    return results, [result_axis] * len(results)


def batch_at(axis: int, size: int, x: Any, batch_axis: int | None) -> Any:
    """An array with its batch at `axis`: moved there, or made if it has none."""
    if batch_axis is not None:
        return jnp.moveaxis(x, batch_axis, axis)
    shape = jnp.shape(x)
    return jnp.broadcast_to(jnp.expand_dims(x, axis), (*shape[:axis], size, *shape[axis:]))


def batch_one_by_one(
    bind: Callable[..., Any], operands: Sequence[Any], axes: Sequence[Any]
) -> tuple[Any, Any]:
    """The results of a call for each member of a batch, one after the other."""
    pairs = list(zip(operands, axes, strict=True))
    batched = [jnp.moveaxis(x, axis, 0) for x, axis in pairs if axis is not None]

    def call(members: Sequence[Any]) -> Any:
        remaining = iter(members)
        return bind(*(x if axis is None else next(remaining) for x, axis in pairs))

    results = jax.lax.map(call, batched)
    return results, jax.tree_util.tree_map(lambda _: 0, results)
