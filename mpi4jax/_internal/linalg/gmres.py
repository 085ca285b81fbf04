"""The generalized minimal residual method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.checks import integer
from ..arguments.types import Array, Comm, Integer, PyTree, Scalar
from .solve import Info, Method, Stop, System, Target, add, scale, solve
from .vectors import Plan, scalar_product

T = TypeVar("T")


def gmres(
    A: Callable[[T], T],
    b: T,
    x0: T | None = None,
    *,
    rtol: Scalar | Array = 1e-5,
    atol: Scalar | Array = 0.0,
    restart: Integer = 20,
    maxiter: Integer | None = None,
    M: Callable[[T], T] | None = None,
    plan: Plan | None = None,
    comm: Comm = None,
) -> tuple[T, Info]:
    """Solve ``A(x) = b`` by GMRES with restarts, for any invertible ``A``.

    An iteration applies ``A`` and ``M`` once and has two allreduces: the products with all
    vectors of the basis, by the classical Gram-Schmidt process, and these products again,
    against rounding errors. ``M`` is applied on the right, so that the residual belongs to
    ``A(x) = b``.

    See :func:`cg` for the other arguments.

    Arguments:
        restart: The number of iterations until the method starts again from the solution
            so far. The basis has one vector more.
        maxiter: The largest number of iterations in all (defaults to ten times the number
            of unknowns). :func:`jax.scipy.sparse.linalg.gmres` counts restarts instead.

    Returns:
        The solution, and an :class:`Info`.

    """
    function = "linalg.gmres"
    if (restart := integer(function, "restart", restart)) < 1:
        raise ValueError(
            f"{function} got {restart} for argument `restart`, expected 1 or more"
        )
    method = Method(function, _Cycle(restart), 1.0)
    stop = Stop(rtol, atol, maxiter)
    return solve(method, A, b, x0, stop, M, plan, comm)


class _State(NamedTuple):
    """The orthonormal basis; the unitary matrix that makes the Hessenberg triangular."""

    basis: PyTree
    rotation: Array
    triangle: Array
    #: The square of the residual's norm before the last iteration, equal on all processes.
    square: Array
    iterations: Array


@dataclass(frozen=True)
class _Cycle:
    """The iterations between two restarts."""

    restart: int

    def __call__(
        self, system: System, residual: PyTree, target: Target
    ) -> tuple[PyTree, Array]:
        restart = self.restart
        vectors = system.vectors
        product = scalar_product(residual)
        with_basis = jax.vmap(product, in_axes=(0, None))
        square = target.square
        dtype = jax.eval_shape(product, residual, residual).dtype
        processes = vectors.communicator.size

        def is_unfinished(state: _State) -> Array:
            goes_on = state.iterations < jnp.minimum(target.limit, restart)
            return goes_on & (state.square > target.bound)

        def combined(basis: PyTree, factors: Array) -> PyTree:
            return jax.tree.map(
                lambda v: jnp.tensordot(factors, v, 1, precision="highest").astype(v.dtype),
                basis,
            )

        def iterate(state: _State) -> _State:
            step, basis, rotation = state.iterations, state.basis, state.rotation
            v = jax.tree.map(lambda x: x[step], basis)
            w = system.operator(system.preconditioner(v))
            # Each process computes the last residual, and all take the mean.
            last = square * jnp.abs(rotation[step, 0]) ** 2 / processes
            last = last.astype(dtype)[None]
            total = vectors.total(jnp.concatenate([with_basis(basis, w), last]))
            first, last = total[:-1], total[-1].real
            w = add(w, (-jnp.ones((), dtype), combined(basis, first)))
            of_w = product(w, w)[None]
            total = vectors.total(jnp.concatenate([with_basis(basis, w), of_w]))
            second, of_w = total[:-1], total[-1].real
            w = add(w, (-jnp.ones((), dtype), combined(basis, second)))
            length = jnp.sqrt(jnp.maximum(of_w - jnp.sum(jnp.abs(second) ** 2), 0))
            w = scale(jnp.where(length > 0, 1 / length, 0), w)
            basis = jax.tree.map(lambda v, new: v.at[step + 1].set(new), basis, w)
            column = (first + second).at[step + 1].set(length.astype(dtype))
            column = jnp.matmul(rotation, column, precision="highest")
            # A rotation of two rows makes the last element of the column zero.
            a, b = column[step], column[step + 1]
            diagonal = jnp.sqrt(jnp.abs(a) ** 2 + jnp.abs(b) ** 2)
            # Both are zero if there is no new vector.
            is_new = diagonal > 0
            diagonal = jnp.where(is_new, diagonal, 1)
            a, b = jnp.where(is_new, a / diagonal, 1), b / diagonal
            upper, lower = rotation[step], rotation[step + 1]
            rotation = rotation.at[step].set(a.conj() * upper + b.conj() * lower)
            rotation = rotation.at[step + 1].set(a * lower - b * upper)
            column = jnp.where(jnp.arange(restart) < step, column[:-1], 0)
            column = column.at[step].set(diagonal.astype(dtype))
            triangle = state.triangle.at[:, step].set(column)
            return _State(basis, rotation, triangle, last, step + 1)

        first = scale(1 / jnp.sqrt(square), residual)
        basis = jax.tree.map(
            lambda v: jnp.concatenate([v[None], jnp.zeros((restart, *v.shape), v.dtype)]),
            first,
        )
        rotation = jnp.eye(restart + 1, dtype=dtype)
        triangle = jnp.eye(restart, dtype=dtype)
        start = _State(basis, rotation, triangle, square, jnp.zeros((), jnp.int32))
        end = jax.lax.while_loop(is_unfinished, iterate, start)
        right = jnp.sqrt(square) * end.rotation[:-1, 0]
        right = jnp.where(jnp.arange(restart) < end.iterations, right, 0)
        factors = jax.scipy.linalg.solve_triangular(end.triangle, right)
        in_basis = jax.tree.map(lambda v: v[:-1], end.basis)
        return system.preconditioner(combined(in_basis, factors)), end.iterations
