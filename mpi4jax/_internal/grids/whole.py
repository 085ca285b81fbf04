"""Whole arrays: how they are divided into the parts of processes, and joined again."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mpi4jax._override import override

from ..arguments.types import Array
from ..operations.allgather import AllGather
from ..whole import ScatterBase, WholeCall
from .division import DividedAxis, Division
from .redistribution import Distribution, Redistribution


class ScatterCall(ScatterBase[Division]):
    """A call of `scatter`."""

    name = "scatter_parts"

    @override
    def from_root(
        self, root: int, leaves: Sequence[Array], fill_value: Array, *_: Array
    ) -> list[Array]:
        pairs = zip(leaves, self.divisions, strict=True)
        rank = self.communicator.rank
        parts = [jnp.full(each.local_shape(rank), fill_value, x.dtype) for x, each in pairs]
        sources = tuple(Distribution(each, root) for each in self.divisions)
        results = tuple(Distribution(each, has_ghosts=True) for each in self.divisions)
        move = Redistribution(self.communicator, sources, results)
        return move.call_in_program(leaves, parts)


class GatherCall(WholeCall[Division]):
    """A call of `gather`."""

    name = "gather_parts"

    @override
    def call_in_program(self, leaves: Sequence[Array], *_: Array) -> list[Array]:
        """The whole arrays. There are none where a process does not get them.

        Arguments:
            leaves: The parts of this process, with ghosts.

        """
        if self.root is None:
            return list(map(self._joined, leaves, self.divisions))
        rank = self.communicator.rank
        own = []
        for x, division in zip(leaves, self.divisions, strict=True):
            region = division.distinct_region(rank)
            for axis in division.axes:
                (span,) = region[axis.position]
                first, last = axis.lower, axis.lower + len(span.points)
                x = jax.lax.slice_in_dim(x, first, last, axis=axis.position)
            own.append(x)
        sources = tuple(map(Distribution, self.divisions))
        results = tuple(Distribution(each, self.root) for each in self.divisions)
        whole = Redistribution(self.communicator, sources, results).call_in_program(own)
        return whole if rank == self.root else []

    def _joined(self, x: Array, division: Division) -> Array:
        for axis in division.axes:
            last = x.shape[axis.position] - axis.upper
            x = jax.lax.slice_in_dim(x, axis.lower, last, axis=axis.position)
        padding = [(0, 0)] * x.ndim
        for axis in division.axes:
            missing = axis.largest + axis.extra - x.shape[axis.position]
            padding[axis.position] = (0, missing)
        x = AllGather(self.communicator).apply(jnp.pad(x, padding))
        x = _side_by_side(x, division.axes)
        for axis in division.axes:
            points = axis.joined_points
            if np.array_equal(points, np.arange(len(points))):
                x = jax.lax.slice_in_dim(x, 0, len(points), axis=axis.position)
            else:
                x = jnp.take(x, points, axis.position)
        return x


def _side_by_side(x: Array, axes: Sequence[DividedAxis]) -> Array:
    """The array that has the parts of a stack side by side."""
    x = x.reshape(*(axis.processes for axis in axes), *x.shape[1:])
    ndim = x.ndim - len(axes)
    index = {ndim + axis.position: n for n, axis in enumerate(axes)}
    # Each axis of processes goes in front of that of their cells.
    order: list[int] = []
    shape: list[int] = []
    for position, size in enumerate(x.shape[len(axes) :]):
        if position in index:
            order.append(index[position])
            size *= axes[index[position]].processes
        order.append(len(axes) + position)
        shape.append(size)
    return x.transpose(order).reshape(shape)
