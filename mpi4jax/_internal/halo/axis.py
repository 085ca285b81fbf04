"""The axes along which a grid is divided among processes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import jax

from ..arguments.types import Array
from .grid import part_of


class Axis(NamedTuple):
    """An axis of the grid of processes, and of the arrays."""

    #: Its position in the arrays.
    position: int
    #: The halo width: the number of ghost cells on either side.
    lower: int
    upper: int
    processes: int
    is_periodic: bool
    #: The coordinate of this process, or None on a mesh.
    coordinate: int | None
    #: The axis of the mesh, along which all parts have the same size.
    name: Hashable
    #: The number of cells of the whole grid, if it is known.
    cells: int | None

    def part(self, coordinate: int, cells: int) -> range:
        """Cells of a process, of `cells` in all: the first processes have one more."""
        return part_of(cells, self.processes, coordinate)

    def own_part(self) -> range:
        """The cells of this process, or of the first one on a mesh."""
        assert self.cells is not None
        return self.part(self.coordinate or 0, self.cells)

    def coordinate_on_mesh(self) -> Array:
        """The coordinate of the process that runs a program of a mesh."""
        return jax.lax.axis_index(self.name)

    def offset(self) -> int | Array:
        """The first cell of this process in the whole grid."""
        if self.coordinate is None:
            return self.coordinate_on_mesh() * len(self.own_part())
        return self.own_part().start
