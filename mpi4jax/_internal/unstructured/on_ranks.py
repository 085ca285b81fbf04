"""Rows of a plan on a communicator, where each process has a program of its own."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.types import Array
from ..mpi import handles
from ..mpi.handles import Communicator, check_not_freed
from . import discovery
from .discovery import Neighborhood
from .rows import first_row, pattern_of


class RankRows:
    """Rows of the fields of one process, which the process knows.

    Arguments:
        neighborhood: The points of this process and its neighbors.
        comm: The communicator of the processes.
        block: Number of rows of each point.

    """

    is_on_mesh = False
    #: The operand with the ranks that the program computes: none.
    ranks: tuple[Array, ...] = ()

    def __init__(self, neighborhood: Neighborhood, comm: MPI.Intracomm, block: int) -> None:
        self.neighborhood, self.comm, self.block = neighborhood, comm, block
        self._communicator = handles.communicator("unstructured.Plan", comm)
        self.size = neighborhood.size * block
        self.owned = np.repeat(neighborhood.owned, block)
        #: Number of own rows of each process.
        self.counts = tuple(count * block for count in neighborhood.counts)
        #: Number of rows of whole fields, and of own rows of this process.
        self.total, self.own_count = sum(self.counts), self.counts[self._communicator.rank]
        self.pattern, rows = pattern_of(
            neighborhood.size, neighborhood.ranks, neighborhood.sent, neighborhood.received
        )
        # A plan that is made while a program is traced may outlive the trace.
        with jax.ensure_compile_time_eval():
            self.table = jnp.asarray(rows)

    def communicator(self, function: str) -> Communicator:
        """The communicator, for a program that calls `function`. Raise if it was freed."""
        check_not_freed(function, self._communicator)
        return self._communicator

    @override
    def __repr__(self) -> str:
        owned = int(self.owned.sum())
        neighbors = len(self.neighborhood.ranks)
        return f"{owned} own rows, {self.size - owned} ghosts, {neighbors} neighbors"

    @functools.cached_property
    def _own(self) -> np.ndarray | slice:
        """The own rows as an index, a slice if they follow each other."""
        rows = np.flatnonzero(self.owned)
        first = first_row(rows) if len(rows) else 0
        return rows if first is None else slice(first, first + len(rows))

    @functools.cached_property
    def positions(self) -> Array:
        """Positions of the own rows in whole fields."""
        positions = discovery.positions(self.neighborhood, self.comm)
        with jax.ensure_compile_time_eval():
            return jnp.asarray(rows_of_points(positions, self.block), np.int32)

    def own(self, x: Array, axis: int) -> Array:
        """The own rows of a field."""
        return x[_index(x, self._own, axis)]

    def put(self, x: Array, axis: int) -> Array:
        """Own rows among zeros in place of the ghosts."""
        if self.own_count == self.size:
            return x
        position = axis % x.ndim
        shape = [*x.shape[:position], self.size, *x.shape[position + 1 :]]
        result = jnp.zeros(shape, x.dtype)
        if isinstance(self._own, slice):
            # Without own rows, too, the result has to depend on x, for the transpose.
            start = self._own.start
            return jax.lax.dynamic_update_slice_in_dim(result, x, start, position)
        # JAX transposes a scatter to rows that it knows to differ.
        return result.at[_index(x, self._own, axis)].set(x, unique_indices=True)


def rows_of_points(numbers: np.ndarray, block: int) -> np.ndarray:
    """The numbers of the rows of points that have these numbers."""
    rows = numbers[:, None] * block + np.arange(block)
    return rows.reshape(-1)


def _index(x: Array, rows: np.ndarray | slice, axis: int) -> tuple[np.ndarray | slice, ...]:
    """The index of rows along an axis."""
    return (*(slice(None),) * (axis % x.ndim), rows)
