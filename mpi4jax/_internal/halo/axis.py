"""The axes along which a grid is divided among processes."""

from __future__ import annotations

from typing import NamedTuple


class Axis(NamedTuple):
    """An axis of the grid of processes, and of the arrays."""

    #: Its position in the arrays.
    position: int
    #: The halo width: the number of ghost cells on either side.
    lower: int
    upper: int
    processes: int
    is_periodic: bool
    #: The coordinate of this process.
    coordinate: int
    #: The number of cells of the whole grid, if it is known.
    cells: int | None

    def part(self, coordinate: int, cells: int) -> range:
        """The cells of a process, of so many in all: the first processes have one more."""
        share, rest = divmod(cells, self.processes)
        first = coordinate * share + min(coordinate, rest)
        return range(first, first + share + (coordinate < rest))

    def own_part(self) -> range:
        assert self.cells is not None
        return self.part(self.coordinate, self.cells)
