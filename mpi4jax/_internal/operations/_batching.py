"""Batches of an operation's operands, which travel in one message.

An operation moves blocks of memory between processes, and reduces them element by element.
So the operation on a batch is the operation on larger blocks. The batch only has to be at
the axis at which each block contains its part of the batch (:meth:`Operation.batch_axes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..arguments.types import Array

Results = TypeVar("Results", Array, list[Array])


def batch_at(
    axis: int,
    arrays: Sequence[Array],
    batch_axes: Sequence[int | None],
    size: int | None = None,
) -> list[Array]:
    """Arrays with their batch at `axis`. An array without a batch is broadcast."""
    if size is None:
        size = batch_size(arrays, batch_axes)

    def moved(x: Array, batch_axis: int | None) -> Array:
        if batch_axis is not None:
            return jnp.moveaxis(x, batch_axis, axis)
        shape = (*x.shape[:axis], size, *x.shape[axis:])
        return jnp.broadcast_to(jnp.expand_dims(x, axis), shape)

    return [moved(x, n) for x, n in zip(arrays, batch_axes, strict=True)]


def batch_size(arrays: Sequence[Array], batch_axes: Sequence[int | None]) -> int:
    """The size of the batch that some of the arrays have."""
    pairs = zip(arrays, batch_axes, strict=True)
    return next(x.shape[axis] for x, axis in pairs if axis is not None)


def batch_one_by_one(
    bind: Callable[..., Results], operands: Sequence[Array], axes: Sequence[int | None]
) -> Results:
    """The results of a call for each member of a batch, one after the other, in axis 0."""
    pairs = list(zip(operands, axes, strict=True))
    batched = [jnp.moveaxis(x, axis, 0) for x, axis in pairs if axis is not None]

    def call(members: Sequence[Array]) -> Results:
        remaining = iter(members)
        return bind(*(x if axis is None else next(remaining) for x, axis in pairs))

    results: Results = jax.lax.map(call, batched)
    return results
