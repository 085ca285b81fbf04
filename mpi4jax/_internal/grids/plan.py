"""Base of plans of arrays that a grid of processes divides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.types import Array, Integer
from ..mpi import handles
from ..mpi.handles import Communicator
from ..operations._eager import on_own_devices
from ..whole import WholePlan
from .division import Division
from .grid import Grid
from .whole import GatherCall, ScatterCall

T = TypeVar("T")


class GridPlan(WholePlan[Division]):
    """Base of plans of arrays that a grid of processes divides."""

    _grid: Grid
    _gather_call = GatherCall
    _scatter_call = ScatterCall

    @property
    @override
    def _is_on_mesh(self) -> bool:
        return self._grid.is_on_mesh

    @property
    @override
    def comm(self) -> MPI.Intracomm:
        """The communicator of the grid of processes."""
        return self._grid.comm

    @overload
    def gather(self, fields: T, *, root: None = None) -> T: ...

    @overload
    def gather(self, fields: T, *, root: Integer) -> T | None: ...

    @on_own_devices
    def gather(self, fields: T, *, root: Integer | None = None) -> T | None:
        """Join the parts of all processes, without ghosts.

        Arguments:
            fields: An array, or a tree of arrays: the parts of this process.
            root (int): The one process that gets the whole arrays, if not all do.

        Returns:
            The whole arrays, or None on a process that does not get them.

        """
        return self._gather(fields, root)

    @override
    def _communicator_of(self, function: str) -> Communicator:
        communicator = super()._communicator_of(function)
        if not self._is_on_mesh:
            return communicator
        return handles.communicator(function, self.comm)

    @override
    def _operands(self, function: str) -> Sequence[Array]:
        return self._grid.program_coordinates(function)
