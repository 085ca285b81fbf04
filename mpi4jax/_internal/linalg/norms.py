"""Norms of divided vectors, as functions of one argument that other libraries take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
from mpi4py import MPI

from ..arguments.hashable import HashableMPIType
from ..arguments.types import Array, Comm, PyTree
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall, on_own_devices, run_named
from .products import inexact
from .vectors import Plan, Vectors, hashable_comm, norm_dtype


def rms_norm(plan: Plan | None = None, *, comm: Comm = None) -> Callable[[PyTree], Array]:
    """Make the root mean square of all elements of a divided vector, as a function.

    The function takes an array or a tree of arrays, and has one message. Its result is
    equal on all processes, so it can decide how long their loops run: as ``norm`` of
    Diffrax's ``PIDController`` and of Optimistix. See :doc:`libraries`.

    Arguments:
        plan: A plan such as :class:`mpi4jax.halo.Plan`, whose ghost points do not count. A
            number beside its fields counts once on each process.
        comm (mpi4py.MPI.Comm): Without a plan, the communicator of the processes that
            have parts of the vectors (defaults to a clone of :obj:`COMM_WORLD`).

    """
    return _norm("linalg.rms_norm", _root_mean_square, plan, comm)


def max_norm(plan: Plan | None = None, *, comm: Comm = None) -> Callable[[PyTree], Array]:
    """Make the largest absolute value in a divided vector, as a function.

    See :func:`rms_norm` for the arguments. In derivatives, elements that are equally large
    have equal parts.
    """
    return _norm("linalg.max_norm", _largest, plan, comm)


@dataclass(frozen=True)
class _Norm:
    """A norm of divided vectors.

    It compares by value: a program in which it is a constant is compiled once.
    """

    function: str
    over_all: Callable[[Vectors, PyTree], Array]
    plan: Plan | None
    comm: HashableMPIType[MPI.Intracomm] | None

    @on_own_devices
    def __call__(self, x: PyTree) -> Array:
        vectors = Vectors(self.function, self.plan, self.comm)
        leaves = jax.tree.leaves(vectors.arrays("x", x))
        if not leaves:
            raise ValueError(f"{self.function} got {x!r} for `x`, expected some arrays")
        fields = vectors.own([leaf for leaf in leaves if leaf.ndim])
        numbers = [leaf for leaf in leaves if not leaf.ndim]
        call = _NormCall(vectors.communicator, self)
        leaves = list(map(inexact, [*fields, *numbers]))
        return cast(Array, run_named(self.function, call, [leaves]))


@dataclass(frozen=True)
class _NormCall(PlanCall):
    """A call of a norm. An eager call runs a separate program."""

    name: ClassVar[str] = "norm"

    communicator: Communicator
    norm: _Norm

    def call_in_program(self, leaves: list[Array]) -> Array:
        """The norm of the own elements in these arrays."""
        vectors = Vectors(self.norm.function, self.norm.plan, self.norm.comm)
        return self.norm.over_all(vectors, leaves)


def _norm(
    function: str,
    over_all: Callable[[Vectors, PyTree], Array],
    plan: Plan | None,
    comm: Comm,
) -> _Norm:
    Vectors(function, plan, comm)  # raises an error for what is no plan
    return _Norm(function, over_all, plan, hashable_comm(comm))


def _root_mean_square(vectors: Vectors, leaves: list[Array]) -> Array:
    count = jnp.asarray(sum(leaf.size for leaf in leaves), norm_dtype(leaves))
    square, total = vectors.products([(leaves, leaves)], count)
    # The norm has no derivative at 0. This one gives 0 there, not NaN.
    is_positive = square > 0
    root = jnp.sqrt(jnp.where(is_positive, square, 1) / jnp.maximum(total, 1))
    return jnp.where(is_positive, root, square)


def _largest(vectors: Vectors, leaves: list[Array]) -> Array:
    dtype = norm_dtype(leaves)
    parts = [jnp.max(jnp.abs(leaf), initial=0).astype(dtype) for leaf in leaves]
    own = jnp.max(jnp.stack(parts))
    # MPI may lose a NaN, or keep it on some processes only.
    is_nan = jnp.isnan(own)
    largest, has_nan = vectors.largest([jnp.where(is_nan, 0, own), is_nan.astype(dtype)])
    return jnp.where(has_nan > 0, jnp.nan, largest)
