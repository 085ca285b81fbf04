"""Base of plans of arrays that a grid of processes divides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, overload

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike, Integer, Scalar
from ..mpi import handles
from ..mpi.handles import Communicator
from ..operations._eager import ArrayOrLeaves, on_own_devices
from ..whole import Leaf, WholePlan
from .division import Division
from .grid import Grid
from .whole import GatherCall, ScatterCall, points_along

T = TypeVar("T")


class GridPlan(WholePlan[Division]):
    """Base of plans of arrays that a grid of processes divides."""

    _grid: Grid
    _gather_call = GatherCall
    _scatter_call = ScatterCall

    @property
    @override
    def comm(self) -> MPI.Intracomm:
        """The communicator of the grid of processes."""
        return self._grid.comm

    @property
    @override
    def _is_on_mesh(self) -> bool:
        return self._grid.is_on_mesh

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
        if not self._grid.is_on_mesh:
            return communicator
        return handles.communicator(function, self.comm)

    @override
    def _known_root(
        self, function: str, root: Integer | None, communicator: Communicator
    ) -> int | None:
        if root is None:
            self._grid.check_program(function)
        return super()._known_root(function, root, communicator)

    @override
    def _points(self, division: Division) -> Mapping[int, ArrayLike]:
        coordinates: Sequence[int | Array] = self._grid.program_coordinates()
        coordinates = coordinates or division.coordinates(self._grid.rank)
        ndim, pairs = len(division.shape), zip(division.axes, coordinates, strict=True)
        return {axis.position + ndim: points_along(axis, at) for axis, at in pairs}

    @override
    def _gather_operands(self, parts: list[Array]) -> list[ArrayOrLeaves]:
        return [parts]

    @override
    def _scatter_operands(
        self, whole: list[Leaf], fill_value: Scalar
    ) -> list[ArrayOrLeaves]:
        return [whole, jnp.asarray(fill_value), *self._grid.program_coordinates()]
