"""The common part of all solvers: arguments, restarts, convergence, and derivatives."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from mpi4py import MPI

from ..arguments.checks import array, check_callable, integer, reject
from ..arguments.types import Array, Comm, DType, Integer, PyTree, Scalar, Unchecked
from ..mpi.handles import Communicator
from ..operations._arguments import KINDS, kind_of
from ..operations._eager import PlanCall, on_own_devices, run_named
from ..operations.allreduce import allreduce
from ..xla.dependence import depend
from ..xla.jax_compat import Tracer, trace_state_clean
from ..xla.traced import Equations, Traced
from .vectors import Plan, Vectors, largest_part, norm_dtype

T = TypeVar("T")

#: A linear operator on the points that processes own.
Operator: TypeAlias = Callable[[PyTree], PyTree]

#: Largest number of iterations.
MAX_ITERATIONS = 2**31 - 2**8


class Reason(enum.IntEnum):
    """Reason why a solver has stopped."""

    #: The residual is small enough.
    CONVERGED = 0
    #: The largest number of iterations was reached.
    MAXITER = 1
    #: A restart has not reduced the residual: it is as small as rounding errors allow, the
    #: method has broken down, or the operator is not one that the method can solve with.
    STAGNATED = 2
    #: The residual is infinite or not a number.
    NOT_FINITE = 3


class Info(NamedTuple):
    """The outcome of a solver. The values are equal on all processes."""

    #: The number of iterations.
    iterations: Array
    #: The norm of ``b - A(x)``, computed from the result.
    residual: Array
    #: Whether the residual is at most ``max(rtol * norm(b), atol)``.
    converged: Array
    #: The :class:`Reason` why the solver has stopped, as an integer.
    reason: Array


class Stop(NamedTuple):
    """The user's criteria for a solver to stop."""

    rtol: Scalar | Array
    atol: Scalar | Array
    maxiter: Integer | None


class Limits(NamedTuple):
    """The arguments of :class:`Stop` as arrays."""

    rtol: Array
    atol: Array
    maxiter: Array | None


class Functions(NamedTuple):
    """The functions that a solver calls, on fields and on the points that processes own."""

    #: Returns the owned points of a field.
    own: Operator
    operator: Operator
    preconditioner: Operator | None
    #: Returns the field with these owned points.
    with_ghosts: Operator


class System(NamedTuple):
    """A system to solve on the points that processes own."""

    vectors: Vectors
    operator: Operator
    #: The identity, if the user passed no preconditioner.
    preconditioner: Operator
    is_preconditioned: bool


#: A function that solves for a right-hand side, from a start (None for zeros).
Solver: TypeAlias = Callable[[Operator, PyTree, PyTree], tuple[PyTree, Info]]


class Target(NamedTuple):
    """The criteria for a cycle to stop."""

    #: The square of the norm of the first residual, near 1.
    square: Array
    #: The largest square of the norm of a residual that has converged.
    bound: Array
    #: The largest number of iterations.
    limit: Array


class Cycle(Protocol):
    """The iterations of a method, until these seem to have converged.

    A cycle and its parameters compare by value.

    The condition of a loop has to be equal on all processes, whose programs may round
    differently. So the condition depends on nothing but results of allreduce, their
    products and comparisons.
    """

    def __call__(
        self, system: System, residual: PyTree, target: Target
    ) -> tuple[PyTree, Array]:
        """Solve for the step that makes this residual small.

        Return the step, and the number of iterations.
        """


class Method(NamedTuple):
    """A method, and the condition for another cycle if one has not converged."""

    function: str
    cycle: Cycle
    #: Another cycle follows if the last one has reduced the square of the residual's norm
    #: at least by this factor.
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
    limits = _limits(function, stop)
    b = vectors.arrays("b", b)
    _check_types(function, b)
    if x0 is not None:
        x0 = _like(function, "argument `x0`", vectors.arrays("x0", x0), b)
    operator = _on_own_points(vectors, "A", A)
    preconditioner = None if M is None else _on_own_points(vectors, "M", M)
    functions = Functions(vectors.own, operator, preconditioner, vectors.with_ghosts)
    if trace_state_clean():
        return _solve_eagerly(method, vectors, functions, b, x0, limits)

    def program(b: PyTree, x0: PyTree) -> tuple[PyTree, Info]:
        return _solution(method, vectors, functions, b, x0, limits)

    program.__name__ = function.rpartition(".")[2]
    solution: tuple[T, Info] = jax.jit(program)(b, x0)
    return solution


def _solve_eagerly(
    method: Method,
    vectors: Vectors,
    functions: Functions,
    b: PyTree,
    x0: PyTree,
    limits: Limits,
) -> tuple[PyTree, Info]:
    """The solution of an eager call, by a separate compiled program.

    The functions of users and plans are traced in each call, as they may have changed. If
    only the arrays in them have changed, the compiled program is used again.
    """
    own = Traced(functions.own, b)
    others = [Traced(each, own.result_types) for each in functions[1:] if each is not None]
    traced = [own, *others]
    equations = tuple(each.equations for each in traced)
    call = _SolveCall(vectors.of_own_points, vectors.communicator, method, equations)
    constants = [each.consts for each in traced]
    x, info = run_named(method.function, call, [b, x0, limits, constants])
    return x, info


@dataclass(frozen=True)
class _SolveCall(PlanCall):
    """An eager call of a solver."""

    vectors: Vectors = field(compare=False)
    communicator: Communicator
    method: Method
    #: The equations of the :class:`Functions`, except for a preconditioner that is None.
    equations: tuple[Equations, ...]

    @property
    def name(self) -> str:
        return self.method.function.rpartition(".")[2]

    def call_in_program(
        self, b: PyTree, x0: PyTree, limits: Limits, constants: Sequence[Sequence[Array]]
    ) -> list[PyTree | Info]:
        own, operator, *others, with_ghosts = map(partial, self.equations, constants)
        functions = Functions(own, operator, others[0] if others else None, with_ghosts)
        return [*_solution(self.method, self.vectors, functions, b, x0, limits)]


def _solution(
    method: Method,
    vectors: Vectors,
    functions: Functions,
    b: PyTree,
    x0: PyTree,
    limits: Limits,
) -> tuple[PyTree, Info]:
    """The solution, with its derivatives."""
    b, x0 = functions.own(b), None if x0 is None else functions.own(x0)
    preconditioner = functions.preconditioner
    leaves = jax.tree_util.tree_leaves(b)
    # In a shard_map, JAX lets the values that the solver closes over vary as `b` does, but
    # only after it has traced the solver.
    limits = jax.tree.map(lambda x: depend(x, *leaves), limits)
    is_preconditioned = preconditioner is not None
    precondition = preconditioner or (lambda v: v)

    def solver(preconditioner: Operator) -> Solver:
        def run(operator: Operator, b: PyTree, x0: PyTree) -> tuple[PyTree, Info]:
            system = System(vectors, operator, preconditioner, is_preconditioned)
            return _iterate(method, system, b, x0, limits)

        return run

    def transposed(operator: Operator, b: PyTree, x0: PyTree) -> tuple[PyTree, Info]:
        if not is_preconditioned:
            return solver(precondition)(operator, b, x0)
        transpose = jax.linear_transpose(precondition, b)
        return solver(lambda v: transpose(v)[0])(operator, b, x0)

    is_complex = any(map(jnp.iscomplexobj, leaves))
    x, info = _differentiable(
        functions.operator,
        b,
        x0,
        solver(precondition),
        transposed,
        # The transpose of a Hermitian operator is its conjugate.
        is_symmetric=method.is_symmetric and not is_complex,
    )
    info = _of_all_processes(vectors, info)
    return functions.with_ghosts(x), info


def _differentiable(
    operator: Operator,
    b: PyTree,
    x0: PyTree,
    solver: Solver,
    transposed: Solver,
    is_symmetric: bool,
) -> tuple[PyTree, Info]:
    """The solution, with the derivatives of the solution of a linear system.

    Tangents and cotangents are solutions for other right-hand sides, for which `x0` is no
    good guess. So the system has another equation, `first = 1`, which becomes `first = 0`
    for tangents and cotangents.
    """
    b = _mutually_dependent(b)
    if x0 is None:
        x, info = jax.lax.custom_linear_solve(
            lambda v: _mutually_dependent(operator(v)),
            b,
            lambda operator, b: solver(operator, b, None),
            None if is_symmetric else lambda operator, b: transposed(operator, b, None),
            symmetric=is_symmetric,
            has_aux=True,
        )
        return _mutually_dependent(x), info
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
        lambda pair: _mutually_dependent((operator(pair[0]), pair[1])),
        _mutually_dependent((b, is_first)),
        with_start(solver),
        None if is_symmetric else with_start(transposed),
        symmetric=is_symmetric,
        has_aux=True,
    )
    return _mutually_dependent(pair)[0], info


def _mutually_dependent(tree: T) -> T:
    """The tree with a dependence of each leaf on all leaves, for JAX.

    JAX can't differentiate the solution if some leaves have a tangent and others have none,
    and tracks the mesh axes over which each leaf varies.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if len(leaves) == 1:
        return tree
    tied = [depend(leaf, *leaves) for leaf in leaves]
    return cast(T, jax.tree_util.tree_unflatten(structure, tied))


class _Norm(NamedTuple):
    """The norm of a vector, scaled by a power of two so that its square is finite."""

    #: The square of the norm of the vector times ``2**-exponent``.
    square: Array
    exponent: Array

    @property
    def value(self) -> Array:
        return _times_power_of_two(jnp.sqrt(self.square), self.exponent)

    def square_over(self, exponent: Array) -> Array:
        """The square of the norm of the vector times ``2**-exponent``."""
        difference = self.exponent - exponent
        factor = _times_power_of_two(jnp.ones_like(self.square), difference)
        return self.square * factor * factor


def _norms(
    vectors: Vectors, trees: Sequence[PyTree], *others: Array
) -> tuple[list[_Norm], list[Array]]:
    """The norms of vectors, and other sums, with two messages."""
    largest = vectors.largest([largest_part(tree) for tree in trees])
    # A power of two changes no digits, so all processes have the same conditions.
    exponents = [jnp.where(jnp.isfinite(x), _exponent(x), 0) for x in largest]
    pairs = zip(trees, exponents, strict=True)
    multiples = [_times_power_of_two(tree, -exponent) for tree, exponent in pairs]
    sums = vectors.products([(x, x) for x in multiples], *others)
    count = len(trees)
    return list(map(_Norm, sums[:count], exponents)), sums[count:]


def _times_power_of_two(x: T, exponent: Array) -> T:
    """A vector times ``2**exponent``."""
    # The powers of half the exponent are finite where the whole power is not.
    half = exponent >> 1
    dtype = norm_dtype(x)
    first, second = _power_of_two(half, dtype), _power_of_two(exponent - half, dtype)
    x = jax.tree.map(lambda a: (first * a * second).astype(a.dtype), x)
    return x


# These two read and write the bits of numbers: JAX's frexp and ldexp take XLA as long to
# compile as a cycle.


def _exponent(x: Array) -> Array:
    """The largest `n` for which ``2**n`` is at most a positive number."""
    finfo = jnp.finfo(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"int{finfo.bits}"))
    return ((bits >> finfo.nmant) + (1 - finfo.maxexp)).astype(jnp.int32)


def _power_of_two(exponent: Array, dtype: DType) -> Array:
    """``2**exponent``, or the nearest power of two that is a normal number."""
    finfo = jnp.finfo(dtype)
    exponent = jnp.clip(exponent, finfo.minexp, finfo.maxexp - 1)
    bits = (exponent + (finfo.maxexp - 1)).astype(f"int{finfo.bits}") << finfo.nmant
    return jax.lax.bitcast_convert_type(bits, dtype)


class _State(NamedTuple):
    """The state of a solver between two cycles."""

    x: PyTree
    residual: PyTree
    norm: _Norm
    iterations: Array
    #: Whether the last cycle has reduced the residual.
    has_improved: Array


def _iterate(
    method: Method, system: System, b: PyTree, x0: PyTree, limits: Limits
) -> tuple[PyTree, Info]:
    """Run cycles of a method, each for the residual of the solution so far.

    A residual that a method updates drifts from the residual of its solution. So the latter
    is computed after each cycle, and another cycle follows if it has not converged.
    """
    vectors, operator = system.vectors, system.operator
    x = jax.tree.map(jnp.zeros_like, b) if x0 is None else x0
    residual = b if x0 is None else _minus(b, operator(x))
    size = sum(leaf.size for leaf in jax.tree_util.tree_leaves(b))
    local_size = jnp.asarray(size, norm_dtype(b))
    (b_norm, residual_norm), (total,) = _norms(vectors, [b, residual], local_size)
    rtol, atol = (jnp.asarray(x, b_norm.square.dtype) for x in (limits.rtol, limits.atol))
    default_limit = jnp.minimum(10 * total, MAX_ITERATIONS)
    limit = default_limit.astype(jnp.int32) if limits.maxiter is None else limits.maxiter

    def bound(exponent: Array) -> Array:
        """The largest square of a converged residual's norm, times ``4**-exponent``."""
        relative = _times_power_of_two(rtol, b_norm.exponent - exponent)
        absolute = _times_power_of_two(atol, -exponent)
        return jnp.maximum(jnp.square(relative) * b_norm.square, jnp.square(absolute))

    def has_converged(norm: _Norm) -> Array:
        # The bound may be infinite if the norm is.
        return jnp.isfinite(norm.square) & (norm.square <= bound(norm.exponent))

    def is_unfinished(state: _State) -> Array:
        can_go_on = jnp.isfinite(state.norm.square) & (state.iterations < limit)
        return ~has_converged(state.norm) & can_go_on & state.has_improved

    def cycle(state: _State) -> _State:
        square, exponent = state.norm
        step, iterations = method.cycle(
            system,
            _times_power_of_two(state.residual, -exponent),
            Target(square, bound(exponent), limit - state.iterations),
        )
        x = jax.tree.map(jnp.add, state.x, _times_power_of_two(step, exponent))
        residual = _minus(b, operator(x))
        (norm,), _ = _norms(vectors, [residual])
        # After a breakdown, the norm is not finite, and the step is dropped.
        is_finite = jnp.isfinite(norm.square)
        x, residual, norm = jax.tree.map(
            lambda new, old: jnp.where(is_finite, new, old),
            (x, residual, norm),
            (state.x, state.residual, state.norm),
        )
        has_improved = norm.square_over(exponent) < method.factor * square
        return _State(x, residual, norm, state.iterations + iterations, has_improved)

    true = jnp.ones((), bool)
    # In a shard_map, a cycle's number of iterations may vary over the mesh, as limits do.
    iterations = depend(jnp.zeros((), jnp.int32), rtol)
    start = _State(x, residual, residual_norm, iterations, true)
    state = jax.lax.while_loop(is_unfinished, cycle, start)
    converged = has_converged(state.norm)
    reason = jnp.select(
        [converged, ~jnp.isfinite(state.norm.square), state.iterations >= limit],
        [Reason.CONVERGED, Reason.NOT_FINITE, Reason.MAXITER],
        Reason.STAGNATED,
    ).astype(jnp.int32)
    info = Info(state.iterations, state.norm.value, converged, reason)
    # In a shard_map, JAX requires that these vary over the mesh as the solution does.
    leaves = jax.tree_util.tree_leaves(state.x)
    return state.x, Info(*(depend(value, *leaves) for value in info))


def _of_all_processes(vectors: Vectors, info: Info) -> Info:
    """The outcome as values that, in a shard_map, JAX knows not to vary over the mesh."""
    if not vectors.communicator.axes:
        return info
    iterations, residual, _, reason = jax.lax.stop_gradient(info)
    numbers = jnp.stack([iterations, reason])
    numbers, residual = allreduce([numbers, residual], op=MPI.MAX, comm=vectors.comm)
    iterations, reason = numbers
    return Info(iterations, residual, reason == Reason.CONVERGED, reason)


def scale(factor: Array, x: PyTree) -> PyTree:
    """A multiple of a vector, with the vector's types."""
    return jax.tree.map(lambda a: (factor * a).astype(a.dtype), x)


def add(x: PyTree, *terms: tuple[Array, PyTree]) -> PyTree:
    """The sum of a vector and multiples of others, with the vector's types."""
    factors = [factor for factor, _ in terms]

    def of_leaves(a: Array, *others: Array) -> Array:
        for factor, other in zip(factors, others, strict=True):
            a = (a + factor * other).astype(a.dtype)
        return a

    return jax.tree.map(of_leaves, x, *(y for _, y in terms))


def _minus(x: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, x, y)


def _limits(function: str, stop: Stop) -> Limits:
    maxiter = None
    if stop.maxiter is not None:
        count = integer(function, "maxiter", stop.maxiter)
        if count < 0:
            raise ValueError(
                f"{function} got {count} for argument `maxiter`, expected 0 or more"
            )
        maxiter = jnp.asarray(min(count, MAX_ITERATIONS), jnp.int32)
    rtol = _tolerance(function, "rtol", stop.rtol)
    atol = _tolerance(function, "atol", stop.atol)
    return Limits(rtol, atol, maxiter)


def _tolerance(function: str, name: str, value: Unchecked) -> Array:
    """Check that a tolerance is a number of 0 or more, and return it as an array."""
    value = array(function, name, value)
    dtype = jnp.result_type(value)
    if jnp.ndim(value) or kind_of(dtype) > KINDS.index(np.floating):
        reject(function, name, "a number", value)
    if isinstance(value, Tracer):
        return jnp.maximum(value, 0)
    if not value >= 0:
        raise ValueError(
            f"{function} got {value} for argument `{name}`, expected 0 or more"
        )
    return jnp.asarray(value)


def _check_types(function: str, b: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(b)
    if not leaves:
        reject(function, "b", "an array, or a tree with arrays", b)
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact) or leaf.dtype.itemsize < 2:
            name = f"b{jax.tree_util.keystr(path)}"
            raise TypeError(
                f"{function} got an array of type {leaf.dtype} for `{name}`, expected a "
                "floating-point type of 16 bits or more, or a complex type"
            )


def _like(function: str, source: str, tree: PyTree, like: PyTree) -> PyTree:
    """Check that a tree has the structure and shapes of another, and convert its types."""
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
    """A user's operator on fields, as an operator on the points that processes own."""

    @jax.named_scope(vectors.function)
    def operator(x: PyTree) -> PyTree:
        field = vectors.with_ghosts(x)
        result = function(field)
        return vectors.own(_like(vectors.function, f"the result of {name}", result, field))

    return operator
