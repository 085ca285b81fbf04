"""The method of conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.types import Array, Comm, Integer, PyTree, Scalar
from ..nonblocking.overlap import overlap
from ..xla.dependence import depend
from .solve import Info, Method, Stop, System, Target, add, solve
from .vectors import Plan

T = TypeVar("T")

#: Number of pipelined iterations until vectors are computed anew. With 50, a solver keeps
#: about eight digits for an ill-conditioned system.
REPLACED_AFTER = 50


def cg(
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
    pipelined: bool = False,
) -> tuple[T, Info]:
    """Solve ``A(x) = b`` by conjugate gradients, for a Hermitian positive definite ``A``.

    An iteration applies ``A`` and ``M`` once and has one allreduce, after Chronopoulos and
    Gear (1989). Rounding errors limit the accuracy a little earlier than in the classical
    method with two allreduces: in ``float64``, at a relative residual of about the
    condition number times 1e-16. The iterations are then repeated with the residual of the
    solution, as long as this helps.

    Arguments:
        A: A linear function of a vector, equal to its own adjoint.
        b: The right-hand side: an array or a tree of arrays, of floating-point or complex
            types.
        x0: A vector to start from (defaults to zeros). Derivatives do not depend on it.
        rtol: The largest norm of the residual relative to the norm of ``b``.
        atol: The largest norm of the residual, if this is larger: the solver stops when
            ``norm(b - A(x)) <= max(rtol * norm(b), atol)``.
        maxiter: The largest number of iterations (defaults to ten times the number of
            unknowns).
        M: A linear function that approximates the inverse of ``A``, also Hermitian and
            positive definite.
        plan: A plan such as :class:`mpi4jax.halo.Plan`. Vectors are then fields with ghost
            points, which are filled in the arguments of ``A`` and ``M`` and in the result,
            and ignored elsewhere.
        comm (mpi4py.MPI.Comm): Without a plan, the communicator of the processes among
            which the vectors are divided (defaults to a clone of :obj:`COMM_WORLD`).
        pipelined: Whether the allreduce is in flight while ``A`` and ``M`` are applied,
            after Ghysels and Vanroose (2014). This takes more memory and computes more, and
            rounding errors limit the accuracy earlier.

    Returns:
        The solution, and an :class:`Info`.

    """
    cycle = _pipelined_cycle if pipelined else _cycle
    # With an indefinite operator the method breaks down, and more cycles do not help.
    method = Method("linalg.cg", cycle, 0.25, is_symmetric=True)
    stop = Stop(rtol, atol, maxiter)
    return solve(method, A, b, x0, stop, M, plan, comm)


class _State(NamedTuple):
    """Names as in the paper: `u = M r`, `w = A u`, and `s = A p`."""

    x: PyTree
    r: PyTree
    u: PyTree
    w: PyTree
    p: PyTree
    s: PyTree
    gamma: Array
    alpha: Array
    square: Array
    iterations: Array


def _cycle(system: System, residual: PyTree, target: Target) -> tuple[PyTree, Array]:
    def precondition(r: PyTree) -> tuple[PyTree, PyTree, Array, Array, Array]:
        u = system.preconditioner(r)
        w = system.operator(u)
        pairs = [(r, r), (w, u)] + [(r, u)] * system.is_preconditioned
        square, delta, *gamma = system.vectors.products(pairs)
        return u, w, square, delta, gamma[0] if gamma else square

    def is_unfinished(state: _State) -> Array:
        return (state.square > target.bound) & (state.iterations < target.limit)

    def iterate(state: _State) -> _State:
        x = add(state.x, (state.alpha, state.p))
        r = add(state.r, (-state.alpha, state.s))
        u, w, square, delta, gamma = precondition(r)
        beta = gamma / state.gamma
        alpha = gamma / (delta - beta * gamma / state.alpha)
        p, s = add(u, (beta, state.p)), add(w, (beta, state.s))
        return _State(x, r, u, w, p, s, gamma, alpha, square, state.iterations + 1)

    u, w, square, delta, gamma = precondition(residual)
    x, zero = jax.tree.map(jnp.zeros_like, residual), jnp.zeros((), jnp.int32)
    start = _State(x, residual, u, w, u, w, gamma, gamma / delta, square, zero)
    end = jax.lax.while_loop(is_unfinished, iterate, start)
    return end.x, end.iterations


class _PipelinedState(NamedTuple):
    """Names as in the paper: `q = M s`, and `z = A q`."""

    x: PyTree
    r: PyTree
    u: PyTree
    w: PyTree
    p: PyTree
    s: PyTree
    q: PyTree
    z: PyTree
    gamma: Array
    alpha: Array
    square: Array
    iterations: Array


def _pipelined_cycle(
    system: System, residual: PyTree, target: Target
) -> tuple[PyTree, Array]:
    def is_unfinished(state: _PipelinedState) -> Array:
        return (state.square > target.bound) & (state.iterations < target.limit)

    def iterate(state: _PipelinedState) -> _PipelinedState:
        r, u, w = state.r, state.u, state.w

        def apply() -> tuple[PyTree, PyTree]:
            m = system.preconditioner(w)
            return m, system.operator(m)

        pairs = [(r, r), (w, u)] + [(r, u)] * system.is_preconditioned
        (square, delta, *products), (m, n) = overlap(
            lambda: system.vectors.products(pairs), during=apply
        )
        gamma = products[0] if products else square
        is_first = state.iterations == 0
        beta = jnp.where(is_first, 0, gamma / state.gamma)
        alpha = gamma / (delta - beta * gamma / state.alpha)
        # If the last iteration has converged, this one changes nothing.
        goes_on = square > target.bound
        alpha = jnp.where(goes_on, alpha, 0)
        p, s = add(u, (beta, state.p)), add(w, (beta, state.s))
        q, z = add(m, (beta, state.q)), add(n, (beta, state.z))
        iterations = state.iterations + goes_on
        updated = _PipelinedState(
            add(state.x, (alpha, p)),
            add(r, (-alpha, s)),
            add(u, (-alpha, q)),
            add(w, (-alpha, z)),
            *(p, s, q, z, gamma, alpha, square, iterations),
        )
        is_due = iterations % REPLACED_AFTER == 0
        state = jax.lax.cond(is_due, replace, lambda x: x, updated)
        return state

    def replace(state: _PipelinedState) -> _PipelinedState:
        """Compute the vectors anew, as updated vectors drift from their definitions."""
        r = add(residual, (-unit, system.operator(state.x)))
        u = system.preconditioner(r)
        s = system.operator(state.p)
        q = system.preconditioner(s)
        w, z = system.operator(u), system.operator(q)
        return state._replace(r=r, u=u, w=w, s=s, q=q, z=z)

    u = system.preconditioner(residual)
    w = system.operator(u)
    zeros = jax.tree.map(jnp.zeros_like, w)
    unit = jnp.ones_like(target.square)
    # In a shard_map, JAX requires that these vary over the mesh as they do in the loop.
    first, iterations = (depend(x, target.bound) for x in (unit, jnp.zeros((), jnp.int32)))
    numbers = (unit, first, target.square, iterations)
    start = _PipelinedState(zeros, residual, u, w, *(zeros,) * 4, *numbers)
    end = jax.lax.while_loop(is_unfinished, iterate, start)
    return end.x, end.iterations
