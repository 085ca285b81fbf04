"""The solvers as classes of lineax, for the libraries that solve with these.

This module is imported where a class is first used, and imports lineax.

With a plan, a solver inverts the operator B = R A E on the points that processes own: E
fills ghosts, and R drops them. So the solution for a field b is E B^-1 R b, a linear map
whose transpose is R^T B^-T E^T. That is not the same map of A's transpose, where A reads
ghosts or writes some.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx

from mpi4jax._override import override

from ..arguments.types import Array, Comm, PyTree
from ..xla.held_functions import declare_held_effects
from ..xla.traced import Equations, Traced
from . import bicgstab, cg, gmres
from .solve import Info, Reason
from .vectors import Plan, Vectors, hashable_comm

Function = Callable[[PyTree], PyTree]
Options = dict[str, Any]


class _State(eqx.Module):
    """The operator of a solver, or the transpose or conjugate of the solver's map for it.

    Its leaves are arrays, and states of operators that differ in nothing else have the same
    structure: Diffrax keeps one from step to step.
    """

    constants: list[Array]
    equations: Equations = eqx.field(static=True)
    is_transposed: bool = eqx.field(static=True, default=False)
    is_conjugated: bool = eqx.field(static=True, default=False)


class _Solver(lx.AbstractLinearSolver[_State]):
    """A solver of this package as one of lineax.

    Arguments:
        rtol, atol: The solver stops once the norm of the residual is at most ``rtol`` times
            the norm of the right-hand side, or ``atol``.
        max_steps: The largest number of iterations (default: as without lineax).
        plan: A plan such as :class:`mpi4jax.halo.Plan`, if vectors are its fields. Without
            one, all elements on all processes are the vector, ghosts included.
        comm (mpi4py.MPI.Comm): Without a plan, the communicator of the processes that
            have parts of the vectors (defaults to a clone of :obj:`COMM_WORLD`).

    """

    rtol: float = 1e-5
    atol: float = 0.0
    max_steps: int | None = None
    plan: Plan | None = eqx.field(static=True, default=None, kw_only=True)
    comm: Comm = eqx.field(static=True, default=None, kw_only=True, converter=hashable_comm)

    def __check_init__(self) -> None:
        Vectors(f"linalg.{type(self).__name__}", self.plan, self.comm)
        declare_held_effects()

    def solution(self, A: Function, b: PyTree, **arguments: Any) -> tuple[PyTree, Info]:
        """The solution by the function of this package."""
        raise NotImplementedError

    @override
    def init(self, operator: lx.AbstractLinearOperator, options: Options) -> _State:
        traced = Traced(lx.linearise(operator).mv, operator.in_structure())
        return _State(traced.consts, traced.equations)

    @override
    def compute(
        self, state: _State, vector: PyTree, options: Options
    ) -> tuple[PyTree, lx.RESULTS, dict[str, Any]]:
        preconditioner = options.get("preconditioner")
        M = None if preconditioner is None else preconditioner.mv
        A: Function = functools.partial(state.equations, state.constants)
        if state.is_conjugated:
            A, M = _conjugated(A), None if M is None else _conjugated(M)
        limits = {"rtol": self.rtol, "atol": self.atol, "maxiter": self.max_steps}
        if not state.is_transposed:
            x0 = options.get("y0")
            x, info = self.solution(
                A, vector, x0=x0, M=M, plan=self.plan, comm=self.comm, **limits
            )
        else:
            vectors = Vectors(f"linalg.{type(self).__name__}", self.plan, self.comm)
            own, with_ghosts = vectors.own, vectors.with_ghosts
            points = jax.eval_shape(own, vector)

            def transposed(function: Function) -> Function:
                def of_points(v: PyTree) -> PyTree:
                    return own(function(with_ghosts(v)))

                transpose = jax.linear_transpose(of_points, points)
                return lambda v: transpose(v)[0]

            (b,) = jax.linear_transpose(with_ghosts, points)(vector)
            M = None if M is None else transposed(M)
            y, info = self.solution(transposed(A), b, M=M, comm=vectors.comm, **limits)
            (x,) = jax.linear_transpose(own, vector)(y)
        return x, _result(info), {"num_steps": info.iterations, "max_steps": self.max_steps}

    # The preconditioner is transposed and conjugated together with the operator.

    @override
    def transpose(self, state: _State, options: Options) -> tuple[_State, Options]:
        is_transposed = not state.is_transposed
        return replace(state, is_transposed=is_transposed), _preconditioner(options)

    @override
    def conj(self, state: _State, options: Options) -> tuple[_State, Options]:
        is_conjugated = not state.is_conjugated
        return replace(state, is_conjugated=is_conjugated), _preconditioner(options)

    @override
    def assume_full_rank(self) -> bool:
        return True

    # What lineax < 0.1 asks for.

    def allow_dependent_columns(self, operator: lx.AbstractLinearOperator) -> bool:
        return False

    def allow_dependent_rows(self, operator: lx.AbstractLinearOperator) -> bool:
        return False


def _preconditioner(options: Options) -> Options:
    """The options without the start, which is that of another system."""
    return {name: value for name, value in options.items() if name == "preconditioner"}


def _conjugated(function: Function) -> Function:
    def conjugated(v: PyTree) -> PyTree:
        return jax.tree.map(jnp.conj, function(jax.tree.map(jnp.conj, v)))

    return conjugated


def _result(info: Info) -> lx.RESULTS:
    """Why a solver has stopped, in lineax's words."""
    result = lx.RESULTS.successful
    for reason, other in (
        (Reason.MAXITER, lx.RESULTS.max_steps_reached),
        (Reason.STAGNATED, lx.RESULTS.stagnation),
        (Reason.NOT_FINITE, lx.RESULTS.breakdown),
    ):
        result = lx.RESULTS.where(info.reason == reason, other, result)
    return result


def _documented(solver: type[_Solver]) -> type[_Solver]:
    """Give a solver's docstring the arguments that all have."""
    arguments = (_Solver.__doc__ or "").partition("\n\n")[2]
    solver.__doc__ = f"{solver.__doc__}\n\n{arguments}"
    return solver


@_documented
class CG(_Solver):
    """:func:`cg` as a solver of lineax, for operators that are positive definite."""

    @override
    def solution(self, A: Function, b: PyTree, **arguments: Any) -> tuple[PyTree, Info]:
        return cg.cg(A, b, **arguments)

    @override
    def init(self, operator: lx.AbstractLinearOperator, options: Options) -> _State:
        if not lx.is_positive_semidefinite(operator):
            raise ValueError(
                "linalg.CG got an operator without a tag for `operator`, expected one with "
                "lineax.positive_semidefinite_tag"
            )
        return super().init(operator, options)


@_documented
class BiCGStab(_Solver):
    """:func:`bicgstab` as a solver of lineax, for any invertible operators."""

    @override
    def solution(self, A: Function, b: PyTree, **arguments: Any) -> tuple[PyTree, Info]:
        return bicgstab.bicgstab(A, b, **arguments)


@_documented
class GMRES(_Solver):
    """:func:`gmres` as a solver of lineax, for any invertible operators.

    ``restart`` is the largest number of iterations before a restart.
    """

    restart: int = eqx.field(static=True, default=20, kw_only=True)

    @override
    def solution(self, A: Function, b: PyTree, **arguments: Any) -> tuple[PyTree, Info]:
        return gmres.gmres(A, b, restart=self.restart, **arguments)
