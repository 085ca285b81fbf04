"""What all solvers have in common: arguments, restarts, convergence, and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from ..arguments.checks import check_callable, integer, reject
from ..arguments.types import Array, Comm, Integer, PyTree, Scalar, Unchecked
from ..operations._eager import on_own_devices
from ..operations.allreduce import allreduce
from ..xla.call_sites import mark_eager
from ..xla.dependence import depend
from .vectors import Plan, Vectors, norm_dtype

T = TypeVar("T")

#: A linear operator on owned points.
Operator: TypeAlias = Callable[[PyTree], PyTree]

#: The largest number of iterations that is counted.
MOST_ITERATIONS = 2**31 - 2**8


class Info(NamedTuple):
    """How a solver has ended. The values are equal on all processes."""

    #: How many iterations it took.
    iterations: Array
    #: The norm of ``b - A(x)``, computed from the result.
    residual: Array
    #: Whether this is at most ``max(tol * norm(b), atol)``.
    converged: Array


class Stop(NamedTuple):
    """When a user wants a solver to stop."""

    tol: Scalar | Array
    atol: Scalar | Array
    maxiter: Integer | None


class System(NamedTuple):
    """A system to solve on owned points, and how far."""

    vectors: Vectors
    operator: Operator
    preconditioner: Operator
    #: Whether there is a preconditioner.
    is_preconditioned: bool


#: Solves for a right-hand side, from a start, or from zeros without one.
Solver: TypeAlias = Callable[[Operator, PyTree, PyTree], tuple[PyTree, Info]]


class Target(NamedTuple):
    """How far a cycle goes."""

    #: The square of the norm of the residual that it starts with.
    square: Array
    #: That of a residual that has converged, at most.
    bound: Array
    #: The number of iterations, at most.
    limit: Array


class Cycle(Protocol):
    """Iterations of a method, from a start until they seem to have converged.

    The condition of a loop has to be equal on all processes, whose programs may round
    differently. So it depends on results of allreduce, their products and comparisons only.
    """

    def __call__(
        self, system: System, x: PyTree, residual: PyTree, target: Target
    ) -> tuple[PyTree, Array]:
        """Go on from `x`, which has this residual.

        Returns the new `x`, and the number of iterations.
        """


class Method(NamedTuple):
    """A method, and when it goes on after a cycle that has not converged."""

    function: str
    cycle: Cycle
    #: If a cycle has reduced the square of the residual's norm at least by this factor.
    factor: float
    #: Whether the operator is its own adjoint.
    is_symmetric: bool = False


@on_own_devices
def solve(
    method: Method,
    A: Callable[[T], T],
    b: T,
    x0: T | None,
    stop: Stop,
    M: Callable[[T], T] | None,
    plan: Plan | None,
    comm: Comm,
) -> tuple[T, Info]:
    """Solve a system by a method."""
    function = method.function
    vectors = Vectors(function, plan, comm)
    check_callable(function, "A", A, "a vector")
    if M is not None:
        check_callable(function, "M", M, "a vector")
    if stop.maxiter is not None and integer(function, "maxiter", stop.maxiter) < 0:
        raise ValueError(
            f"{function} got {stop.maxiter} for argument `maxiter`, expected 0 or more"
        )
    b = vectors.arrays("b", b)
    _check_types(function, b)
    if x0 is not None:
        x0 = _like(function, "argument `x0`", vectors.arrays("x0", x0), b)
    operator = _on_own_points(vectors, "A", A)
    preconditioner = (lambda v: v) if M is None else _on_own_points(vectors, "M", M)

    def solver(preconditioner: Operator) -> Solver:
        def run(operator: Operator, b: PyTree, x0: PyTree) -> tuple[PyTree, Info]:
            system = System(vectors, operator, preconditioner, M is not None)
            return _iterate(method, system, b, x0, stop)

        return run

    def transposed(operator: Operator, b: PyTree, x0: PyTree) -> tuple[PyTree, Info]:
        if M is None:
            return solver(preconditioner)(operator, b, x0)
        transpose = jax.linear_transpose(preconditioner, b)
        return solver(lambda v: transpose(v)[0])(operator, b, x0)

    def program(b: PyTree, x0: PyTree) -> tuple[PyTree, Info]:
        b = vectors.own(b)
        is_complex = any(jnp.iscomplexobj(leaf) for leaf in jax.tree_util.tree_leaves(b))
        x, info = _differentiable(
            operator,
            b,
            None if x0 is None else vectors.own(x0),
            solver(preconditioner),
            transposed,
            # The transpose of a Hermitian operator is its conjugate.
            is_symmetric=method.is_symmetric and not is_complex,
        )
        return vectors.with_ghosts(x), _of_all_processes(vectors, info)

    mark_eager(program)
    program.__name__ = method.function.rpartition(".")[2]
    return jax.jit(program)(b, x0)


def _differentiable(
    operator: Operator,
    b: PyTree,
    x0: PyTree,
    solver: Solver,
    transposed: Solver,
    is_symmetric: bool,
) -> tuple[PyTree, Info]:
    """The solution, with the derivatives of a solution.

    Tangents and cotangents are solutions for other right-hand sides, of which `x0` is no
    good guess. So there is another equation, `first = 1`, which becomes `first = 0` there.
    """
    b = _tied(b)
    if x0 is None:
        x, info = jax.lax.custom_linear_solve(
            lambda v: _tied(operator(v)),
            b,
            lambda operator, b: solver(operator, b, None),
            None if is_symmetric else lambda operator, b: transposed(operator, b, None),
            symmetric=is_symmetric,
            has_aux=True,
        )
        return _tied(x), info
    x0 = jax.lax.stop_gradient(x0)
    is_first = jnp.ones((), norm_dtype(b))

    def with_start(solver: Solver) -> Callable[[Operator, PyTree], tuple[PyTree, Info]]:
        def run(operator: Operator, pair: PyTree) -> tuple[PyTree, Info]:
            b, first = pair
            start = jax.tree.map(lambda x: jnp.where(first == 1, x, jnp.zeros_like(x)), x0)
            x, info = solver(lambda v: operator((v, first))[0], b, start)
            return (x, first), info

        return run

    pair, info = jax.lax.custom_linear_solve(
        lambda pair: _tied((operator(pair[0]), pair[1])),
        _tied((b, is_first)),
        with_start(solver),
        None if is_symmetric else with_start(transposed),
        symmetric=is_symmetric,
        has_aux=True,
    )
    return _tied(pair)[0], info


def _tied(tree: T) -> T:
    """The tree, each leaf of which depends on all of them for JAX.

    It can't differentiate the solution where some leaves have a tangent and some have none,
    and follows over which axes of a mesh each of them varies.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if len(leaves) == 1:
        return tree
    tied = [depend(leaf, *leaves) for leaf in leaves]
    return cast(T, jax.tree_util.tree_unflatten(structure, tied))


class _State(NamedTuple):
    """A solution between two cycles."""

    x: PyTree
    residual: PyTree
    square: Array
    iterations: Array
    #: Whether the last cycle has reduced the residual.
    has_improved: Array


def _iterate(
    method: Method, system: System, b: PyTree, x0: PyTree, stop: Stop
) -> tuple[PyTree, Info]:
    """Cycles of a method, each from the residual of the solution so far.

    Residuals that a method updates drift from those of its solutions. So what a cycle has
    reached is computed anew, and it is continued if this is not enough.
    """
    vectors, operator = system.vectors, system.operator
    x = jax.tree.map(jnp.zeros_like, b) if x0 is None else x0
    residual = b if x0 is None else _minus(b, operator(x))
    size = sum(leaf.size for leaf in jax.tree_util.tree_leaves(b))
    local_size = jnp.asarray(size, norm_dtype(b))
    of_b, square, total = vectors.products([(b, b), (residual, residual)], local_size)
    bound = jnp.maximum(
        jnp.square(jnp.asarray(stop.tol, of_b.dtype)) * of_b,
        jnp.square(jnp.asarray(stop.atol, of_b.dtype)),
    )
    most = jnp.minimum(10 * total, MOST_ITERATIONS)
    limit = (most if stop.maxiter is None else jnp.asarray(stop.maxiter)).astype(jnp.int32)

    def is_unfinished(state: _State) -> Array:
        is_above = state.square > bound
        return is_above & (state.iterations < limit) & state.has_improved

    def cycle(state: _State) -> _State:
        x, iterations = method.cycle(
            system,
            state.x,
            state.residual,
            Target(state.square, bound, limit - state.iterations),
        )
        residual = _minus(b, operator(x))
        (square,) = vectors.products([(residual, residual)])
        # After a breakdown, there is none.
        is_finite = jnp.isfinite(square)
        x, residual, square = jax.tree.map(
            lambda new, old: jnp.where(is_finite, new, old),
            (x, residual, square),
            (state.x, state.residual, state.square),
        )
        has_improved = square < method.factor * state.square
        return _State(x, residual, square, state.iterations + iterations, has_improved)

    true = jnp.ones((), bool)
    start = _State(x, residual, square, jnp.zeros((), jnp.int32), true)
    state = jax.lax.while_loop(is_unfinished, cycle, start)
    info = Info(state.iterations, jnp.sqrt(state.square), state.square <= bound)
    # As JAX wants in a shard_map, they vary over the mesh as the solution does.
    leaves = jax.tree_util.tree_leaves(state.x)
    return state.x, Info(*(depend(value, *leaves) for value in info))


def _of_all_processes(vectors: Vectors, info: Info) -> Info:
    """Known not to vary over the mesh, in a shard_map."""
    if not vectors.communicator.is_on_mesh:
        return info
    iterations, residual, converged = jax.lax.stop_gradient(info)
    counts = jnp.stack([iterations, converged.astype(jnp.int32)])
    counts, residual = allreduce([counts, residual], op=MPI.MAX, comm=vectors.comm)
    return Info(counts[0], residual, counts[1] == 1)


def scale(factor: Array, x: PyTree) -> PyTree:
    """A multiple of a vector, of the same types."""
    return jax.tree.map(lambda a: (factor * a).astype(a.dtype), x)


def add(x: PyTree, *terms: tuple[Array, PyTree]) -> PyTree:
    """A vector and multiples of others, of the same types."""
    factors = [factor for factor, _ in terms]

    def of_leaves(a: Array, *others: Array) -> Array:
        for factor, other in zip(factors, others, strict=True):
            a = (a + factor * other).astype(a.dtype)
        return a

    return jax.tree.map(of_leaves, x, *(y for _, y in terms))


def _minus(x: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, x, y)


# Checks.


def _check_types(function: str, b: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(b)
    if not leaves:
        reject(function, "b", "an array, or a tree with arrays", b)
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = f"b{jax.tree_util.keystr(path)}"
            raise TypeError(
                f"{function} got an array of type {leaf.dtype} for `{name}`, expected a "
                "floating-point or complex type"
            )


def _like(function: str, source: str, tree: PyTree, like: PyTree) -> PyTree:
    """A tree that has to have the structure, shapes and types of another one."""
    structure: PyTreeDef = jax.tree_util.tree_structure(tree)
    expected: PyTreeDef = jax.tree_util.tree_structure(like)
    if structure != expected:
        raise ValueError(
            f"{function} got a tree {structure} for {source}, expected that of `b`, "
            f"{expected}"
        )

    def of_leaf(path: Unchecked, x: Unchecked, of_b: Array) -> Array:
        shape, dtype = jnp.shape(x), jnp.result_type(x)
        fits = jnp.promote_types(dtype, of_b.dtype) == of_b.dtype
        if shape != of_b.shape or not fits:
            raise ValueError(
                f"{function} got an array of type {dtype} and shape {shape} for {source}"
                f"{jax.tree_util.keystr(path)}, expected {of_b.dtype} and {of_b.shape} as "
                "in `b`"
            )
        return jax.lax.convert_element_type(x, of_b.dtype)

    return jax.tree_util.tree_map_with_path(of_leaf, tree, like)


def _on_own_points(vectors: Vectors, name: str, function: Operator) -> Operator:
    """A user's operator on fields, as one on the points that processes own."""

    def operator(x: PyTree) -> PyTree:
        field = vectors.with_ghosts(x)
        result = function(field)
        return vectors.own(_like(vectors.function, f"the result of {name}", result, field))

    return operator
