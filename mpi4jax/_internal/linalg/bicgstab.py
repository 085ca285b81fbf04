"""The stabilized method of biconjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.types import Array, Comm, Integer, PyTree, Scalar
from .solve import Info, Method, Stop, System, Target, add, solve
from .vectors import Plan, scalar_product

T = TypeVar("T")


def bicgstab(
    A: Callable[[T], T],
    b: T,
    x0: T | None = None,
    *,
    rtol: Scalar | Array = 1e-5,
    atol: Scalar | Array = 0.0,
    maxiter: Integer | None = None,
    M: Callable[[T], T] | None = None,
    plan: Plan | None = None,
    comm: Comm = None,
) -> tuple[T, Info]:
    """Solve ``A(x) = b`` by stabilized biconjugate gradients, for any invertible ``A``.

    An iteration applies ``A`` and ``M`` twice and has two allreduces. ``M`` is applied on
    the right, so that the residual belongs to ``A(x) = b``. After a breakdown, the method
    starts again from the solution so far.

    See :func:`cg` for the arguments.

    Returns:
        The solution, and an :class:`Info`.

    """
    method = Method("linalg.bicgstab", _cycle, 0.9)
    stop = Stop(rtol, atol, maxiter)
    return solve(method, A, b, x0, stop, M, plan, comm)


class _State(NamedTuple):
    """Names as usual: `v = A M p`, and the shadow residual's products with `r` and `v`."""

    x: PyTree
    r: PyTree
    p: PyTree
    preconditioned: PyTree
    v: PyTree
    rho: Array
    sigma: Array
    square: Array
    iterations: Array


def _cycle(system: System, residual: PyTree, target: Target) -> tuple[PyTree, Array]:
    product = scalar_product(residual)
    shadow, of_shadow = residual, target.square

    def with_product(x: PyTree, r: PyTree, p: PyTree, iterations: Array) -> _State:
        preconditioned = system.preconditioner(p)
        v = system.operator(preconditioned)
        sigma, rho, square = system.vectors.products(
            [(shadow, v), (shadow, r), (r, r)], product=product
        )
        return _State(x, r, p, preconditioned, v, rho, sigma, square.real, iterations)

    def is_unfinished(state: _State) -> Array:
        # No absolute value, which programs may round differently.
        rho = jnp.maximum(jnp.abs(state.rho.real), jnp.abs(state.rho.imag))
        is_usable = rho * rho > epsilon**2 * (of_shadow * state.square)
        return (state.square > target.bound) & (state.iterations < target.limit) & is_usable

    def iterate(state: _State) -> _State:
        alpha = state.rho / state.sigma
        s = add(state.r, (-alpha, state.v))
        preconditioned = system.preconditioner(s)
        t = system.operator(preconditioned)
        pairs = [(t, s), (t, t), (shadow, s), (shadow, t)]
        ts, tt, of_s, of_t = system.vectors.products(pairs, product=product)
        # If `s` is zero, this is the solution.
        omega = jnp.where(tt == 0, 0, ts / tt)
        x = add(state.x, (alpha, state.preconditioned), (omega, preconditioned))
        r = add(s, (-omega, t))
        beta = (of_s - omega * of_t) / state.rho * (alpha / omega)
        p = add(r, (beta, add(state.p, (-omega, state.v))))
        return with_product(x, r, p, state.iterations + 1)

    epsilon = jnp.finfo(target.square.dtype).eps
    x = jax.tree.map(jnp.zeros_like, residual)
    start = with_product(x, residual, residual, jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(is_unfinished, iterate, start)
    return end.x, end.iterations
