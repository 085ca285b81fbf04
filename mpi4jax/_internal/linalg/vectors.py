"""Vectors that are divided among the processes, with or without ghost points."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
from mpi4py import MPI

from ..arguments.checks import jax_array, reject
from ..arguments.hashable import HashableMPIType
from ..arguments.types import Array, Comm, DType, PyTree, Unchecked
from ..halo.plan import Plan as HaloPlan
from ..mpi import handles
from ..mpi.handles import Communicator
from ..mpi.plans import PlanBase
from ..operations.allreduce import allreduce

T = TypeVar("T")


class Plan(Protocol):
    """A plan, which knows the points that a process owns and the sources of its ghosts."""

    @property
    def comm(self) -> MPI.Intracomm: ...
    def with_ghosts(self, fields: Any) -> Any: ...
    def without_ghosts(self, fields: Any) -> Any: ...


def hashable_comm(comm: Comm) -> HashableMPIType[MPI.Intracomm] | None:
    """The communicator in a form that compares by value."""
    return HashableMPIType(comm) if isinstance(comm, MPI.Intracomm) else comm


class Vectors:
    """The division of a call's vectors: the plan for their points, and the communicator."""

    def __init__(self, function: str, plan: Unchecked, comm: Comm) -> None:
        self.function = function
        if plan is not None and comm is not None:
            raise ValueError(
                f"{function} got both arguments `plan` and `comm`, expected one of them: a "
                "plan has a communicator"
            )
        parts = ("with_ghosts", "without_ghosts", "comm")
        if plan is not None and (
            isinstance(plan, type) or not all(hasattr(plan, name) for name in parts)
        ):
            reject(function, "plan", "a plan such as mpi4jax.halo.Plan, or None", plan)
        if isinstance(plan, PlanBase):
            plan._communicator_of(function)
        self.plan: Plan | None = plan
        self.comm: Comm = comm if plan is None else plan.comm

    @property
    def communicator(self) -> Communicator:
        return handles.communicator(self.function, self.comm)

    @property
    def of_own_points(self) -> Vectors:
        """The division of vectors of owned points, which needs no plan."""
        return Vectors(self.function, None, self.comm)

    def arrays(self, argument: str, tree: T) -> T:
        """Check that an argument is a tree of arrays, and return it with JAX arrays."""

        def to_array(path: Unchecked, leaf: Unchecked) -> Array:
            name = argument + jax.tree_util.keystr(path)
            x = jax_array(self.function, name, leaf)
            # Not of a weak type, as loops keep types.
            return jax.lax.convert_element_type(x, x.dtype)

        return cast(T, jax.tree_util.tree_map_with_path(to_array, tree))

    def own(self, tree: T) -> T:
        """The points of fields that this process owns."""
        if self.plan is None:
            return tree
        if isinstance(self.plan, HaloPlan):
            for leaf in jax.tree_util.tree_leaves(tree):
                if self.plan.shares_points(leaf):
                    raise ValueError(
                        f"{self.function} got a staggered field of shape {leaf.shape}, of "
                        "which neighbors share points that would count twice, expected "
                        "fields of cells"
                    )
        return cast(T, self.plan.without_ghosts(tree))

    def with_ghosts(self, tree: T) -> T:
        """The fields with these owned points, and their ghost points filled."""
        return tree if self.plan is None else cast(T, self.plan.with_ghosts(tree))

    def total(self, x: T) -> T:
        """The sum of each array over the processes, with one message."""
        return self._allreduce(x, MPI.SUM)

    def _allreduce(self, x: T, op: MPI.Op) -> T:
        # JAX keeps no names of the callers of functions that it traces, such as the body of
        # a loop.
        with jax.named_scope(self.function):
            return allreduce(x, op=op, comm=self.comm)

    def largest(self, values: Sequence[Array]) -> list[Array]:
        """The maximum of each number over the processes, with one message."""
        return list(self._allreduce(jnp.stack(values), MPI.MAX))

    def products(
        self,
        pairs: Sequence[tuple[PyTree, PyTree]],
        *others: Array,
        product: Callable[[PyTree, PyTree], Array] | None = None,
    ) -> list[Array]:
        """The real parts of inner products, and other sums, with one message."""
        product = product or real_product
        terms = [*(product(x, y) for x, y in pairs), *others]
        dtype = jnp.result_type(*terms)
        return list(self.total(jnp.stack([term.astype(dtype) for term in terms])))


def accumulated(x: Array) -> Array:
    """An array converted to the type in which its elements are added: at least 32 bits."""
    if x.dtype.itemsize >= 4:
        return x
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return x.astype(jnp.float32 if is_inexact else jnp.int32)


def local_vdot(x: PyTree, y: PyTree) -> Array:
    """The inner product over the elements of this process."""
    leaves, others = jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y)
    highest = jax.lax.Precision.HIGHEST
    products = [
        jnp.vdot(accumulated(a), accumulated(b), precision=highest)
        for a, b in zip(leaves, others, strict=True)
    ]
    return functools.reduce(operator.add, products)


def real_product(x: PyTree, y: PyTree) -> Array:
    """The real part of the inner product over the elements of this process."""
    return local_vdot(x, y).real


def scalar_product(like: PyTree) -> Callable[[PyTree, PyTree], Array]:
    """The function for inner products over this process's elements, of vectors like this.

    A tree with real and complex arrays counts as a vector of real numbers.
    """
    leaves = jax.tree_util.tree_leaves(like)
    return local_vdot if all(map(jnp.iscomplexobj, leaves)) else real_product


def largest_part(tree: PyTree) -> Array:
    """The largest absolute value of the real and imaginary parts on this process."""
    dtype = norm_dtype(tree)
    parts = []
    for leaf in jax.tree_util.tree_leaves(tree):
        is_complex = jnp.iscomplexobj(leaf)
        of_leaf = (leaf.real, leaf.imag) if is_complex else (leaf,)
        parts += [jnp.max(jnp.abs(x), initial=0).astype(dtype) for x in of_leaf]
    return functools.reduce(jnp.maximum, parts)


def norm_dtype(tree: PyTree) -> DType:
    """The type of the norm of a tree."""
    dtype: DType = jax.eval_shape(real_product, tree, tree).dtype
    return dtype
