"""Base of plans of arrays that a grid of processes divides."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax._override import override

from ..arguments.checks import array_of_others, jax_array
from ..arguments.types import Array, ArrayLike, DType, Integer, PyTree, Scalar
from ..computed import ComputedFields, is_function
from ..layout.packing import Tree
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.plans import PlanBase
from ..operations._arguments import plan_root
from ..operations._eager import on_own_devices, run_named
from ..xla.dependence import depend
from ..xla.jax_compat import Tracer
from .division import Division
from .grid import Grid
from .whole import GatherCall, ScatterCall, points_along

T = TypeVar("T")

#: A leaf of whole arrays: an array, or its type where another process has the array.
Leaf: TypeAlias = ArrayLike | jax.ShapeDtypeStruct


class GridPlan(PlanBase):
    """Base of plans of arrays that a grid of processes divides."""

    _grid: Grid

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator of the grid of processes."""
        return self._grid.comm

    @abstractmethod
    def _whole_division(self, function: str, name: str, x: Leaf) -> Division:
        """The division of a whole array, after checks of its shape."""

    @abstractmethod
    def _part_division(self, function: str, name: str, x: Array) -> Division:
        """The division of the whole array that an array is a part of, after checks."""

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
        function = f"{self._public_name}.gather"
        communicator = self._communicator_of(function)
        root = self._known_root(function, root)
        tree, arrays, divisions = Tree("fields", fields), [], []
        for name, x in tree.jax_arrays(function):
            arrays.append(x)
            divisions.append(self._part_division("gather", name, x))
        whole: list[Array] = []
        if arrays:
            call = GatherCall(communicator, tuple(divisions), root)
            whole = run_named(function, call, [arrays]) or []
        if root is not None and root != communicator.rank:
            return None
        return tree.with_leaves(whole)

    def _scatter(self, fields: PyTree, root: Integer | None, fill_value: Scalar) -> PyTree:
        """The parts of this process of whole arrays, given or computed by a function."""
        function = f"{self._public_name}.scatter"
        communicator = self._communicator_of(function)
        if is_function(fields):
            self._grid.check_program(function)
            computed = ComputedFields(function, fields, root)
            return self._computed(communicator, computed, fill_value)
        root = self._known_root(function, root)
        tree, arrays, divisions = Tree("fields", fields), [], []
        own_rank = self._grid.rank
        has_whole = root in (None, own_rank)
        for name, x in tree.named_leaves():
            leaf = (jax_array if has_whole else array_of_others)(function, name, x)
            division = self._whole_division("scatter", name, leaf)
            divisions.append(division)
            arrays.append(leaf if has_whole else _nothing_of(x, division))
            if own_rank == (root or 0):
                _warn_of_narrowing(function, name, x)
        if not arrays:
            return fields
        call = ScatterCall(communicator, tuple(divisions), root)
        coordinates = self._grid.program_coordinates()
        parts = run_named(function, call, [arrays, jnp.asarray(fill_value), *coordinates])
        return tree.with_leaves(parts)

    def _computed(
        self, communicator: Communicator, fields: ComputedFields, fill_value: Scalar
    ) -> PyTree:
        """The parts of this process of whole arrays that a function computes."""
        points = []
        for name, x in fields.tree.named_leaves():
            division = self._whole_division("scatter", name, x)
            coordinates: Sequence[int | Array] = self._grid.program_coordinates()
            coordinates = coordinates or division.coordinates(self._grid.rank)
            pairs = zip(division.axes, coordinates, strict=True)
            points.append(
                {axis.position + x.ndim: points_along(axis, at) for axis, at in pairs}
            )
        return fields.parts(communicator, points, fill_value)

    @override
    def _communicator_of(self, function: str) -> Communicator:
        communicator = super()._communicator_of(function)
        if not self._grid.is_on_mesh:
            return communicator
        return handles.communicator(function, self.comm)

    def _known_root(self, function: str, root: Integer | None) -> int | None:
        if root is None:
            self._grid.check_program(function)
        is_on_mesh = self._grid.is_on_mesh
        return plan_root(function, root, self._communicator, is_on_mesh=is_on_mesh)


def _nothing_of(x: PyTree, division: Division) -> Array:
    """The part of a whole array on a process that does not have the array: nothing."""
    lead = jnp.shape(x)[: jnp.ndim(x) - len(division.shape)]
    shape = *lead, *(0 for _ in division.shape)
    nothing = jnp.zeros(shape, jax.dtypes.canonicalize_dtype(jnp.result_type(x)))
    # JAX may differentiate a tracer, or map over it, here as where the array is.
    return depend(nothing, x) if isinstance(x, Tracer) else nothing


#: The types that users were warned of.
_narrowed: set[DType] = set()


def _warn_of_narrowing(function: str, name: str, x: Leaf) -> None:
    """Warn once of an array that loses half of its digits, as JAX has them."""
    if isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.inexact):
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        if dtype.itemsize < x.dtype.itemsize and dtype not in _narrowed:
            _narrowed.add(dtype)
            warnings.warn(
                f"{function} got a {x.dtype} array for `{name}`, and makes it {dtype}, as "
                "JAX has 64-bit types off. Turn them on at the start of the program by "
                'jax.config.update("jax_enable_x64", True), or by the environment variable '
                f"JAX_ENABLE_X64=1, or pass x.astype({str(dtype)!r})",
                stacklevel=5,
            )
