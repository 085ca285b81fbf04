"""Whole arrays that a function computes, of which a process computes its part only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .arguments.types import Array, ArrayLike, PyTree, Unchecked
from .layout.packing import Tree
from .mpi.handles import Communicator
from .operations._eager import PlanCall, run_named
from .xla import at_points
from .xla.traced import Equations, Traced


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
                parts[n] = filled(parts[n], axis, index < shape[axis], fill_value)
        return parts


def filled(x: Array, axis: int, has_point: Array, fill_value: ArrayLike) -> Array:
    """A part with the fill value where the whole array has no point along an axis."""
    has_point = has_point.reshape(-1, *(1,) * (x.ndim - axis % x.ndim - 1))
    return jnp.where(has_point, x, jnp.asarray(fill_value).astype(x.dtype))
