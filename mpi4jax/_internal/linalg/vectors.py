"""Vectors that are divided among the processes, with ghost points or without."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
from mpi4py import MPI

from ..arguments.checks import array, reject
from ..arguments.types import Array, Comm, DType, PyTree, Unchecked
from ..halo.plan import Plan as HaloPlan
from ..mpi import handles
from ..mpi.handles import Communicator
from ..operations.allreduce import allreduce

T = TypeVar("T")


class Plan(Protocol):
    """What knows which points a process owns, and where its ghost points come from."""

    @property
    def comm(self) -> MPI.Intracomm: ...
    def add_ghosts(self, fields: Any) -> Any: ...
    def strip_ghosts(self, fields: Any) -> Any: ...


class Vectors:
    """The vectors of a call: which points processes own, and on which communicator."""

    def __init__(self, function: str, plan: Unchecked, comm: Comm) -> None:
        self.function = function
        if plan is not None and comm is not None:
            raise ValueError(
                f"{function} got both arguments `plan` and `comm`, expected one of them: a "
                "plan has a communicator"
            )
        parts = ("add_ghosts", "strip_ghosts", "comm")
        if plan is not None and (
            isinstance(plan, type) or not all(hasattr(plan, name) for name in parts)
        ):
            reject(function, "plan", "a plan such as mpi4jax.halo.Plan, or None", plan)
        self.plan: Plan | None = plan
        self.comm: Comm = comm if plan is None else plan.comm

    @property
    def communicator(self) -> Communicator:
        return handles.communicator(self.function, self.comm)

    def arrays(self, argument: str, tree: T) -> T:
        """An argument that has to be a tree of arrays."""

        def to_array(path: Unchecked, leaf: Unchecked) -> Array:
            name = argument + jax.tree_util.keystr(path)
            x = jnp.asarray(array(self.function, name, leaf))
            # Not of a weak type, as loops keep types.
            return jax.lax.convert_element_type(x, x.dtype)

        return cast(T, jax.tree_util.tree_map_with_path(to_array, tree))

    def own(self, tree: T) -> T:
        """The points that this process owns."""
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
        return cast(T, self.plan.strip_ghosts(tree))

    def with_ghosts(self, tree: T) -> T:
        """The fields that these owned points belong to."""
        return tree if self.plan is None else cast(T, self.plan.add_ghosts(tree))

    def total(self, x: T) -> T:
        """The sum of each array over the processes, with one message."""
        return allreduce(x, op=MPI.SUM, comm=self.comm)

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
    """An array as its elements are added: with 32 bits at least."""
    if x.dtype == bool:
        return x.astype(jnp.int32)
    if x.dtype in (jnp.float16, jnp.bfloat16):
        return x.astype(jnp.float32)
    return x


def local_vdot(x: PyTree, y: PyTree) -> Array:
    """The inner product of what this process has."""
    leaves, others = jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y)
    highest = jax.lax.Precision.HIGHEST
    products = [
        jnp.vdot(accumulated(a), accumulated(b), precision=highest)
        for a, b in zip(leaves, others, strict=True)
    ]
    return functools.reduce(operator.add, products)


def real_product(x: PyTree, y: PyTree) -> Array:
    """The real part of the inner product of what this process has."""
    return local_vdot(x, y).real


def scalar_product(like: PyTree) -> Callable[[PyTree, PyTree], Array]:
    """The inner product of what this process has, for vectors like this one.

    With real numbers among complex ones, a vector is one of real numbers.
    """
    leaves = jax.tree_util.tree_leaves(like)
    return local_vdot if all(map(jnp.iscomplexobj, leaves)) else real_product


def norm_dtype(tree: PyTree) -> DType:
    """The type of the norm of a tree."""
    return jax.eval_shape(real_product, tree, tree).dtype
