"""Sums and inner products over all processes."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef

from ..arguments.dtypes import SUM
from ..arguments.types import Array, Comm, PyTree
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall, on_own_devices, run_named
from ..operations.allreduce import AllReduce
from .reproducible import Term, reproducible_sums
from .vectors import Plan, Vectors, accumulated, local_vdot

T = TypeVar("T")

#: An array whose elements are added, or two arrays for their inner product.
Factors: TypeAlias = tuple[Array, ...]


@on_own_devices
def sum(
    x: T, *, plan: Plan | None = None, comm: Comm = None, reproducible: bool = False
) -> T:
    """The sum of all elements of a divided array.

    Arguments:
        x: An array, or a tree of arrays.
        plan: A plan such as :class:`mpi4jax.halo.Plan`, whose ghost points do not count.
        comm (mpi4py.MPI.Comm): Without a plan, the communicator of the processes that
            have parts of the array (defaults to a clone of :obj:`COMM_WORLD`).
        reproducible: Whether the sum of floating-point or complex numbers is :ref:`equal to
            the last bit <reproducible-sums>` however the numbers are divided and ordered.

    Returns:
        A number for each array of the tree. All arrays of a type take one message.

    """
    vectors = Vectors("linalg.sum", plan, comm)
    x = vectors.own(vectors.arrays("x", x))
    leaves, structure = jax.tree_util.tree_flatten(x)
    totals = _totals(vectors, [[(leaf,)] for leaf in leaves], reproducible)
    return cast(T, jax.tree_util.tree_unflatten(structure, totals))


@on_own_devices
def vdot(
    x: PyTree,
    y: PyTree,
    *,
    plan: Plan | None = None,
    comm: Comm = None,
    reproducible: bool = False,
) -> Array:
    """The inner product of two divided vectors, of which the first is conjugated.

    Arguments:
        x: An array, or a tree of arrays.
        y: An array or a tree of arrays with the structure and shapes of ``x``.
        plan: A plan such as :class:`mpi4jax.halo.Plan`, whose ghost points do not count.
        comm (mpi4py.MPI.Comm): Without a plan, the communicator of the processes that
            have parts of the vectors (defaults to a clone of :obj:`COMM_WORLD`).
        reproducible: Whether the result is :ref:`equal to the last bit <reproducible-sums>`
            however the vectors are divided and ordered.

    """
    function = "linalg.vdot"
    vectors = Vectors(function, plan, comm)
    own_x = vectors.own(vectors.arrays("x", x))
    own_y = own_x if y is x else vectors.own(vectors.arrays("y", y))
    (product,) = _totals(vectors, [_factors(function, own_x, own_y)], reproducible)
    return product


@on_own_devices
def norm(
    x: PyTree, *, plan: Plan | None = None, comm: Comm = None, reproducible: bool = False
) -> Array:
    """The Euclidean norm of a divided vector: the root of the sum of all squares.

    See :func:`vdot` for the arguments.
    """
    function = "linalg.norm"
    vectors = Vectors(function, plan, comm)
    x = jax.tree.map(inexact, vectors.own(vectors.arrays("x", x)))
    (square,) = _totals(vectors, [_factors(function, x, x)], reproducible)
    return jnp.sqrt(square.real)


def inexact(x: Array) -> Array:
    """The array, converted to a floating-point type if it has an integer or boolean one."""
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return x if is_inexact else x.astype(jnp.result_type(float))


def _factors(function: str, x: PyTree, y: PyTree) -> list[Factors]:
    """The pairs of arrays of two vectors."""
    leaves, others = jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y)
    structure: PyTreeDef = jax.tree_util.tree_structure(x)
    structure_of_y: PyTreeDef = jax.tree_util.tree_structure(y)
    if structure != structure_of_y or not leaves:
        raise ValueError(
            f"{function} got trees {structure} and {structure_of_y}, expected equal ones, "
            "with arrays"
        )
    for a, b in zip(leaves, others, strict=True):
        if a.shape != b.shape:
            raise ValueError(
                f"{function} got arrays of shapes {a.shape} and {b.shape}, expected equal "
                "shapes"
            )
    return list(zip(leaves, others, strict=True))


def _totals(vectors: Vectors, sums: list[list[Factors]], reproducible: bool) -> list[Array]:
    if not sums:
        return []
    call = _Sums(vectors.communicator, reproducible)
    return cast(list[Array], run_named(vectors.function, call, [sums]))


@dataclass(frozen=True)
class _Sums(PlanCall):
    """A call of one of these functions. An eager call runs a separate program."""

    name: ClassVar[str] = "linalg_sums"

    communicator: Communicator
    reproducible: bool

    def call_in_program(self, sums: list[list[Factors]]) -> list[Array]:
        total = AllReduce(self.communicator, SUM).call_in_program
        if not self.reproducible:
            return cast(list[Array], total(list(map(_local, sums))))
        terms = [_real_terms(factors) for factors in sums]
        integers = [f for f, parts in zip(sums, terms, strict=True) if not parts]
        of_integers = iter(total(list(map(_local, integers))) if integers else ())
        flat = [part for parts in terms for part in parts]
        of_parts = iter(reproducible_sums(self.communicator, flat))
        totals = []
        for parts in terms:
            if len(parts) == 2:
                totals.append(jax.lax.complex(next(of_parts), next(of_parts)))
            else:
                totals.append(next(of_parts if parts else of_integers))
        return totals


def _local(factors: list[Factors]) -> Array:
    """The sum over the elements of this process."""
    parts = [
        jnp.sum(accumulated(each[0])) if len(each) == 1 else local_vdot(*each)
        for each in factors
    ]
    return functools.reduce(operator.add, parts)


def _real_terms(factors: list[Factors]) -> list[list[Term]]:
    """The terms of the real part of a sum, and of the imaginary part if it is complex.

    Empty for a sum of integers.
    """
    dtype = jax.eval_shape(_local, factors).dtype
    if not jnp.issubdtype(dtype, jnp.inexact):
        return []
    factors = [tuple(x.astype(dtype) for x in each) for each in factors]
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return [factors]
    real: list[Term] = []
    imaginary: list[Term] = []
    for x, *others in factors:
        if others:
            (y,) = others
            real += [(x.real, y.real), (x.imag, y.imag)]
            imaginary += [(x.real, y.imag), (-x.imag, y.real)]
        else:
            real.append((x.real,))
            imaginary.append((x.imag,))
    return [real, imaginary]
