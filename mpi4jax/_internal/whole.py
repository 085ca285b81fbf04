"""Whole arrays, of which each process has a part: plans join them, and divide them again.

Of whole arrays that a function computes, a process computes its part only.
"""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax._override import override

from .arguments.checks import array_of_others, jax_array
from .arguments.types import Array, ArrayLike, DType, Integer, PyTree, Scalar, Unchecked
from .layout.packing import Tree
from .mpi.handles import Communicator
from .mpi.plans import PlanBase
from .operations._arguments import known_root
from .operations._eager import ArrayOrLeaves, PlanCall, run_named
from .xla import at_points
from .xla.dependence import depend
from .xla.jax_compat import Tracer
from .xla.traced import Equations, Traced

#: A leaf of whole arrays: an array, or its type where another process has the array.
Leaf: TypeAlias = ArrayLike | jax.ShapeDtypeStruct


class Divided(Protocol):
    """How a whole array is divided among processes, compared and hashed by value."""

    def points(self, communicator: Communicator, *operands: Any) -> Mapping[int, ArrayLike]:
        """The points of this process along each divided axis.

        Arguments:
            communicator: The communicator of the processes.
            operands: What programs get of the plan.

        """


D = TypeVar("D", bound=Divided)


@dataclass(frozen=True)
class WholeCall(PlanCall, Generic[D]):
    """A call that joins or divides arrays: an eager one is a program of its own."""

    name: ClassVar[str]

    communicator: Communicator
    #: The division of each whole array.
    divisions: tuple[D, ...]
    #: The one process that has the whole arrays, or None where all do.
    root: int | None

    @abstractmethod
    def call_in_program(self, *operands: ArrayOrLeaves) -> list[Array]: ...


class ScatterBase(WholeCall[D]):
    """Base of calls of `scatter`."""

    @override
    def call_in_program(
        self, leaves: Sequence[Array], fill_value: Array, *operands: Array
    ) -> list[Array]:
        """The parts of this process: all points that a division says, such as ghosts.

        Arguments:
            leaves: The whole arrays, or empty ones where another process has these.
            fill_value: Value of points that the whole array does not have.
            operands: What the program gets of the plan.

        """
        if self.root is not None:
            return self.from_root(self.root, leaves, fill_value, *operands)
        parts = []
        for x, division in zip(leaves, self.divisions, strict=True):
            for axis, points in division.points(self.communicator, *operands).items():
                x = part_along(x, axis, points, fill_value)
            parts.append(x)
        return parts

    @abstractmethod
    def from_root(
        self, root: int, leaves: Sequence[Array], fill_value: Array, *operands: Any
    ) -> list[Array]:
        """The parts where one process has the whole arrays."""


class WholePlan(PlanBase, Generic[D]):
    """Base of plans that divide whole arrays among processes, and join them again."""

    _gather_call: type[WholeCall[D]]
    _scatter_call: type[ScatterBase[D]]

    @property
    @abstractmethod
    def _is_on_mesh(self) -> bool:
        """Whether the processes are those of a mesh."""

    @property
    @abstractmethod
    def comm(self) -> MPI.Intracomm:
        """The communicator of the processes."""

    @abstractmethod
    def _whole_division(self, function: str, name: str, x: Leaf) -> D:
        """The division of a whole array, after checks of its shape."""

    @abstractmethod
    def _part_division(self, function: str, name: str, x: Array) -> D:
        """The division of the whole array that an array is a part of, after checks."""

    @abstractmethod
    def _operands(self, function: str) -> Sequence[Array]:
        """Operands of programs behind the arrays: what of the plan processes differ in."""

    def _called(
        self, function: str, root: Integer | None
    ) -> tuple[Communicator, int | None, Sequence[Array]]:
        """The communicator, the one process with whole arrays, if any, and operands."""
        communicator = self._communicator_of(function)
        if root is not None and self._is_on_mesh:
            raise ValueError(
                f"{function} got {root!r} for argument `root` of a plan on a mesh, where "
                "all processes run one program, expected None"
            )
        rank = None if root is None else known_root(function, root, communicator)
        return communicator, rank, self._operands(function)

    def _gather(self, fields: PyTree, root: Integer | None) -> PyTree:
        """The whole arrays, or None on a process that does not get them."""
        function = f"{self._public_name}.gather"
        communicator, root, operands = self._called(function, root)
        tree, parts, divisions = Tree("fields", fields), [], []
        for name, x in tree.jax_arrays(function):
            parts.append(x)
            divisions.append(self._part_division("gather", name, x))
        whole: list[Array] = []
        if parts:
            call = self._gather_call(communicator, tuple(divisions), root)
            whole = run_named(function, call, [parts, *operands]) or []
        if root is not None and root != communicator.rank:
            return None
        return tree.with_leaves(whole)

    def _scatter(
        self, fields: PyTree, root: Integer | None, fill_value: Scalar = 0
    ) -> PyTree:
        """The parts of this process of whole arrays, given or computed by a function."""
        function = f"{self._public_name}.scatter"
        given_root = None if is_function(fields) else root
        communicator, known, operands = self._called(function, given_root)
        if is_function(fields):
            computed = ComputedFields(function, fields, root)
            points = [
                self._whole_division("scatter", *leaf).points(communicator, *operands)
                for leaf in computed.tree.named_leaves()
            ]
            return computed.parts(communicator, points, fill_value)
        tree, arrays, divisions = Tree("fields", fields), [], []
        own_rank = self.comm.Get_rank()
        has_whole = known in (None, own_rank)
        for name, x in tree.named_leaves():
            leaf = (jax_array if has_whole else array_of_others)(function, name, x)
            arrays.append(leaf if has_whole else _nothing_of(x))
            divisions.append(self._whole_division("scatter", name, leaf))
            if own_rank == (known or 0):
                _warn_of_narrowing(function, name, x)
        if not arrays:
            return fields
        call = self._scatter_call(communicator, tuple(divisions), known)
        parts = run_named(function, call, [arrays, jnp.asarray(fill_value), *operands])
        return tree.with_leaves(parts)


def _nothing_of(x: PyTree) -> Array:
    """An empty array in the place of a whole array that another process has."""
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(x))
    nothing = jnp.zeros((0,) * len(jnp.shape(x)), dtype)
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


def is_function(fields: PyTree) -> bool:
    """Whether an argument is a function, and not a tree of arrays that may be called."""
    return callable(fields) and jax.tree_util.all_leaves([fields])


class ComputedFields:
    """Whole arrays that are the result of a function without arguments.

    Arguments:
        function: The name of the user's function that gets them.
        compute: The function that computes them.
        root: The argument `root` of the user's function.

    """

    def __init__(self, function: str, compute: Callable[[], Any], root: Unchecked) -> None:
        try:
            inspect.signature(compute).bind()
        except (TypeError, ValueError):
            raise TypeError(
                f"{function} got {compute!r} for argument `fields`, expected arrays, or a "
                "function without arguments that computes them"
            ) from None
        if root is not None:
            raise ValueError(
                f"{function} got root={root!r} with a function that computes the fields, "
                "expected arrays there: all processes call the function"
            )

        def compute_arrays() -> PyTree:
            tree = Tree("fields", compute())
            return tree.with_leaves([x for _, x in tree.jax_arrays(function)])

        self._function = function
        self._traced = Traced(compute_arrays)
        #: The types of the whole arrays.
        self.tree = Tree("fields", self._traced.result_types)

    def parts(
        self,
        communicator: Communicator,
        points: Sequence[Mapping[int, ArrayLike]],
        fill_value: ArrayLike = 0,
    ) -> PyTree:
        """The parts of this process, as a tree.

        Arguments:
            communicator: The communicator of the processes.
            points: For each array the indices along some of its axes, which are not
                negative. An index beyond the last one has the fill value.
            fill_value: The fill value.

        """
        axes = tuple(map(tuple, points))
        indices = [jnp.asarray(each[axis]) for each in points for axis in each]
        call = _PartsCall(communicator, self._traced.equations, axes)
        constants = list(map(jnp.asarray, self._traced.consts))
        operands = [constants, indices, jnp.asarray(fill_value)]
        return self.tree.with_leaves(run_named(self._function, call, operands) or [])


@dataclass(frozen=True)
class _PartsCall(PlanCall):
    """The computation of parts: an eager one is a program of its own."""

    name: ClassVar[str] = "computed_parts"

    communicator: Communicator
    #: The function that computes whole arrays.
    equations: Equations
    #: For each array the axes of which a process has a part.
    axes: tuple[tuple[int, ...], ...]

    def call_in_program(
        self, constants: Sequence[Array], indices: Sequence[Array], fill_value: Array
    ) -> list[Array]:
        """The parts.

        Arguments:
            constants: The arrays that the function closes over.
            indices: For each array the indices along each of the axes.
            fill_value: Value of points that the whole array does not have.

        """
        remaining = iter(indices)
        by_axis = [{axis: next(remaining) for axis in axes} for axes in self.axes]
        jaxpr = self.equations.jaxpr
        parts = at_points.evaluate(jaxpr, constants, by_axis)
        shapes = map(at_points.shape_of, jaxpr.outvars)
        for n, (shape, of_part) in enumerate(zip(shapes, by_axis, strict=True)):
            for axis, index in of_part.items():
                parts[n] = _filled(parts[n], axis, index < shape[axis], fill_value)
        return parts


def part_along(x: Array, axis: int, points: ArrayLike, fill_value: ArrayLike = 0) -> Array:
    """The points along an axis, with the fill value where the array has none."""
    size = x.shape[axis]
    if isinstance(points, np.ndarray):
        first = int(points[0]) if len(points) else 0
        last = first + len(points)
        if last <= size and np.array_equal(points, np.arange(first, last)):
            # Of an empty part, jnp.take would not depend on the array.
            return jax.lax.slice_in_dim(x, first, last, axis=axis)
    part = jnp.take(x, points, axis, mode="clip")
    return _filled(part, axis, jnp.asarray(points) < size, fill_value)


def _filled(x: Array, axis: int, has_point: Array, fill_value: ArrayLike) -> Array:
    """A part with the fill value where the whole array has no point along an axis."""
    has_point = has_point.reshape(-1, *(1,) * (x.ndim - axis % x.ndim - 1))
    return jnp.where(has_point, x, jnp.asarray(fill_value).astype(x.dtype))
