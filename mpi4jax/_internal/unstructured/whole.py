"""Whole fields: how own rows are joined in the order of the points, and divided again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from ..arguments.types import Array
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall
from ..operations.allgatherv import AllGatherV
from ..operations.gatherv import GatherV
from ..operations.scatterv import ScatterV


@dataclass(frozen=True)
class GatherCall(PlanCall):
    """A call of `gather`: an eager one is a program of its own, for all plans alike."""

    name: ClassVar[str] = "unstructured_gather"

    communicator: Communicator
    #: The number of own rows of each process.
    counts: tuple[int, ...]
    #: The one process that gets the whole fields, or None where all do.
    root: int | None
    #: The first own row of this process, if its own rows follow each other.
    first: int | None

    def call_in_program(
        self, leaves: Sequence[Array], positions: Array, *rows: Array
    ) -> list[Array]:
        """The whole fields. There are none where a process does not get them.

        Arguments:
            leaves: The fields.
            positions: The positions of the own rows in whole fields.
            rows: The list of own rows, if they do not follow each other.

        """
        own = [self._own_rows(x, *rows) for x in leaves]
        joined = _joined(self.communicator, self.counts, self.root, [*own, positions])
        if self.root not in (None, self.communicator.rank):
            return []
        *in_order_of_ranks, order = joined
        return [jnp.zeros_like(x).at[order].set(x) for x in in_order_of_ranks]

    def _own_rows(self, x: Array, *rows: Array) -> Array:
        if self.first is None:
            return x[rows[0]]
        count = self.counts[self.communicator.rank]
        return jax.lax.slice_in_dim(x, self.first, self.first + count)


@dataclass(frozen=True)
class ScatterCall(PlanCall):
    """A call of `scatter`: an eager one is a program of its own, for all plans alike."""

    name: ClassVar[str] = "unstructured_scatter"

    communicator: Communicator
    #: The number of own rows of each process.
    counts: tuple[int, ...]
    #: The one process that has the whole fields, or None where all do.
    root: int | None

    def call_in_program(self, leaves: Sequence[Array], positions: Array) -> list[Array]:
        """The own rows of this process.

        Arguments:
            leaves: The whole fields, or arrays like them where another process has these.
            positions: The positions of the own rows in whole fields.

        """
        communicator, counts, root = self.communicator, self.counts, self.root
        if root is None:
            return [x[positions] for x in leaves]
        (order,) = _joined(communicator, counts, root, [positions])
        # Elsewhere, arrays like the result are passed.
        rows = order if root == communicator.rank else slice(counts[communicator.rank])
        in_order_of_ranks = [x[rows] for x in leaves]
        return ScatterV(communicator, root, counts).apply_to_leaves(in_order_of_ranks)


def _joined(
    communicator: Communicator,
    counts: tuple[int, ...],
    root: int | None,
    own: list[Array],
) -> list[Array]:
    """The rows of all processes, by ranks. Where a process does not get them, its own."""
    if root is None:
        return AllGatherV(communicator, counts).apply_to_leaves(own)
    return GatherV(communicator, root, counts).apply_to_leaves(own)
