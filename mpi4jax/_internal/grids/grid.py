"""The grid of processes of a plan: that of a Cartesian communicator, or a mesh of JAX's."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from mpi4py import MPI

from ..arguments.checks import reject
from ..arguments.types import Array, Unchecked
from ..mpi import handles
from ..mpi.meshes import axis_comm, check_program, names_of
from ..operations._arguments import PROC_NULL
from ..operations._computed import FIRST_COMPUTED, operand_of


class Grid(NamedTuple):
    """A grid of processes, and which of its axes are periodic."""

    #: The communicator of its processes, with ranks in row-major order.
    comm: MPI.Intracomm
    #: The rank of this process.
    rank: int
    dims: tuple[int, ...]
    periods: tuple[bool, ...]
    #: The coordinates of this process, or the names of the mesh's axes. There, the program
    #: is equal on all processes, and knows the coordinates when it runs.
    coordinates: tuple[int, ...] | None
    names: tuple[Hashable, ...] | None

    @classmethod
    def of_communicator(cls, function: str, comm: Unchecked) -> Grid:
        """The grid of a communicator, which `Create_cart` has made."""
        if comm.Get_topology() != MPI.CART:
            raise ValueError(
                f"{function} got a communicator without a grid for argument `comm`, "
                "expected one that comm.Create_cart(dims, periods) has made"
            )
        dims, periods, coordinates = MPI.Cartcomm(comm).Get_topo()
        flags = tuple(map(bool, periods))
        rank = comm.Get_rank()
        return cls(comm, rank, tuple(dims), flags, tuple(coordinates), names=None)

    @classmethod
    def of_mesh(
        cls,
        function: str,
        mesh: jax.sharding.Mesh,
        names: str | Sequence[Hashable] | None,
        periods: Sequence[bool] | None,
    ) -> Grid:
        """The grid of some axes of a mesh, or of all."""
        names = names_of(function, mesh, names)
        comm = axis_comm(mesh, names)
        dims = tuple(mesh.shape[name] for name in names)
        if periods is None:
            periods = [False] * len(names)
        if isinstance(periods, str) or not isinstance(periods, Sequence):
            reject(function, "periods", "a sequence of booleans", periods)
        if len(periods) != len(names):
            raise ValueError(
                f"{function} got {list(periods)} for argument `periods`, expected a "
                f"boolean for each of the axes {list(names)}"
            )
        flags = tuple(map(bool, periods))
        return cls(comm, comm.Get_rank(), dims, flags, coordinates=None, names=names)

    @classmethod
    def of(
        cls,
        function: str,
        comm: Unchecked,
        names: str | Sequence[Hashable] | None,
        periods: Sequence[bool] | None = None,
    ) -> Grid:
        """The grid of processes that an argument `comm` stands for."""
        if isinstance(comm, jax.sharding.Mesh):
            return cls.of_mesh(function, comm, names, periods)
        if not isinstance(comm, MPI.Comm):
            expected = "a communicator of comm.Create_cart(...), or a jax.sharding.Mesh"
            reject(function, "comm", expected, comm)
        if names is not None or periods is not None:
            raise ValueError(
                f"{function} got arguments `names` or `periods` with a communicator, which "
                "has axes and periods of its own, expected these with a mesh only"
            )
        handles.communicator(function, comm)  # raises if one can't communicate on it
        return cls.of_communicator(function, comm)

    @property
    def is_on_mesh(self) -> bool:
        """Whether the processes are those of a mesh."""
        return self.names is not None

    def program_coordinates(self, function: str) -> tuple[Array, ...]:
        """Coordinates of the process that runs the program of a mesh; none elsewhere."""
        self.check_program(function)
        if self.names is None or math.prod(self.dims) == 1:
            return ()
        return tuple(map(jax.lax.axis_index, self.names))

    def check_program(self, function: str) -> None:
        """Refuse a call outside of a program on the mesh, if it has several processes."""
        if self.names is not None and math.prod(self.dims) > 1:
            check_program(function, self.names)

    def parameters(self, shifts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """For each shift, the ranks that this process receives from and sends to.

        A shift is an axis and a number of processes along it. Where the grid ends, a rank
        is MPI.PROC_NULL. On a mesh, it is a parameter that stands for one of :meth:`ranks`.
        """
        if self.names is None:
            return [MPI.Cartcomm(self.comm).Shift(*shift) for shift in shifts]
        positions = range(FIRST_COMPUTED, FIRST_COMPUTED + 2 * len(shifts), 2)
        return [(position, position + 1) for position in positions]

    def ranks(self, shifts: Sequence[tuple[int, int]]) -> tuple[Array, ...]:
        """The operand with the ranks of these shifts, as the program of a mesh has it."""
        if self.names is None:
            return ()
        sides = [(axis, side * step) for axis, step in shifts for side in (-1, 1)]
        return operand_of([self._rank_at(*side) for side in sides])

    def _rank_at(self, axis: int, step: int) -> Array:
        """The rank of the process that is so far away along an axis of the mesh."""
        assert self.names is not None
        coordinate, size = jax.lax.axis_index(self.names[axis]), self.dims[axis]
        other = coordinate + step
        if self.periods[axis]:
            other = other % size
        distance = (other - coordinate) * math.prod(self.dims[axis + 1 :])
        rank = jax.lax.axis_index(self.names) + distance
        return jnp.where((other >= 0) & (other < size), rank, PROC_NULL)
