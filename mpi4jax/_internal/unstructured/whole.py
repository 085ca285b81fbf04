"""Whole fields: how own rows are joined in the order of the points, and divided again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.types import Array
from ..mpi.handles import Communicator
from ..operations.allgather import AllGather
from ..operations.allgatherv import AllGatherV
from ..operations.gatherv import GatherV
from ..operations.scatterv import ScatterV
from ..whole import ScatterBase, WholeCall


class RowDivision(NamedTuple):
    """Shape of a whole field, and how many of its rows each process owns."""

    shape: tuple[int, ...]
    #: The number of own rows of each process, on a mesh with padding.
    counts: tuple[int, ...]

    def points(self, communicator: Communicator, positions: Array) -> dict[int, Array]:
        """The positions of the own rows of this process."""
        return {0: positions}


class GatherCall(WholeCall[RowDivision]):
    """A call of `gather`."""

    name = "unstructured_gather"

    @override
    def call_in_program(self, own: Sequence[Array], positions: Array) -> list[Array]:
        """The whole fields. There are none where a process does not get them.

        Arguments:
            own: The own rows of the fields.
            positions: The positions of these in whole fields.

        """
        *in_order_of_ranks, order = _joined(self, [*own, positions])
        if self.root is not None and self.root != self.communicator.rank:
            return []
        return [
            jnp.zeros(division.shape, x.dtype).at[order].set(x, mode="drop")
            for x, division in zip(in_order_of_ranks, self.divisions, strict=True)
        ]


class ScatterCall(ScatterBase[RowDivision]):
    """A call of `scatter`."""

    name = "unstructured_scatter"

    @override
    def from_root(
        self, root: int, leaves: Sequence[Array], fill_value: Array, positions: Array
    ) -> list[Array]:
        rank, counts = self.communicator.rank, self.divisions[0].counts
        (order,) = _joined(self, [positions])
        if rank == root:
            rows = [x[order] for x in leaves]
        else:  # zeros, which depend on the leaves for the transpose
            shapes = [(counts[rank], *division.shape[1:]) for division in self.divisions]
            pairs = zip(leaves, shapes, strict=True)
            rows = [jnp.pad(x, [(0, size) for size in shape]) for x, shape in pairs]
        return ScatterV(self.communicator, root, counts).apply_to_leaves(rows)


def _joined(call: WholeCall[RowDivision], own: list[Array]) -> list[Array]:
    """The rows of all processes, by ranks. Where a process does not get them, its own."""
    communicator, counts = call.communicator, call.divisions[0].counts
    if communicator.is_on_mesh:
        rows = AllGather(communicator).apply_to_leaves(own)
        return [x.reshape(-1, *x.shape[2:]) for x in rows]
    if call.root is None:
        return AllGatherV(communicator, counts).apply_to_leaves(own)
    return GatherV(communicator, call.root, counts).apply_to_leaves(own)
