"""lineax, optimistix and diffrax on divided vectors, against one process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import halo, linalg
from mpi4jax import notoken as mpi

lx = pytest.importorskip("lineax")
optx = pytest.importorskip("optimistix")
diffrax = pytest.importorskip("diffrax")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
N = 4 * SIZE
OWN = slice(4 * RANK, 4 * RANK + 4)

pytestmark = [
    pytest.mark.usefixtures("enable_x64"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NAMES = ("CG", "BiCGStab", "GMRES")
every_solver = pytest.mark.parametrize("name", NAMES)
RIGHT = np.arange(1.0, N + 1)


def matrix_of(name):
    matrix = np.random.default_rng(0).normal(size=(N, N)) / np.sqrt(N)
    return (matrix @ matrix.T if name == "CG" else matrix) + 3 * np.eye(N)


def operator_of(name, columns):
    """The operator of a matrix of which each process has columns."""

    def product(v):
        return mpi.reduce_scatter((columns @ v).reshape(SIZE, 4), op=MPI.SUM)

    tags = lx.positive_semidefinite_tag if name == "CG" else ()
    return lx.FunctionLinearOperator(product, jax.ShapeDtypeStruct((4,), float), tags)


def solve(name, columns, b, **options):
    solver = getattr(linalg, name)(rtol=1e-12)
    return lx.linear_solve(operator_of(name, columns), b, solver, **options).value


def total(x):
    return mpi.allreduce(x, op=MPI.SUM)


def assert_close(actual, expected, tolerance=1e-8):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@every_solver
def test_solution(name):
    matrix = matrix_of(name)
    columns, b = jnp.asarray(matrix[:, OWN]), jnp.asarray(RIGHT[OWN])
    expected = np.linalg.solve(matrix, RIGHT)
    program = jax.jit(lambda columns, b: solve(name, columns, b))
    assert_close(program(columns, b), expected[OWN])
    assert_close(solve(name, columns, b), expected[OWN])
    # Behind other calls and before them, in loops and batches.
    twice = jax.jit(
        lambda b: jax.lax.scan(lambda x, _: (solve(name, columns, x), None), b, length=2)[0]
    )
    assert_close(twice(total(b) * 0 + b), np.linalg.solve(matrix, expected)[OWN])
    both = jax.jit(jax.vmap(lambda b: solve(name, columns, b)))(jnp.stack([b, -2 * b]))
    assert_close(both[1], -2 * expected[OWN])
    diagonal = lx.DiagonalLinearOperator(1 / jnp.diag(matrix)[OWN])
    tagged = lx.TaggedLinearOperator(diagonal, lx.positive_semidefinite_tag)
    with_options = jax.jit(
        lambda b: solve(name, columns, b, options={"preconditioner": tagged, "y0": b})
    )
    assert_close(with_options(b), expected[OWN])


@every_solver
def test_derivatives(name):
    matrix = matrix_of(name)

    def loss(columns, b):
        return total(jnp.sum(jnp.sin(solve(name, columns, b))))

    def alone(matrix, b):
        return jnp.sum(jnp.sin(jnp.linalg.solve(matrix, b)))

    arguments = jnp.asarray(matrix[:, OWN]), jnp.asarray(RIGHT[OWN])
    of_columns, of_b = jax.jit(jax.grad(loss, (0, 1)))(*arguments)
    of_matrix, of_right = jax.grad(alone, (0, 1))(matrix, RIGHT)
    assert_close(of_columns, of_matrix[:, OWN])
    assert_close(of_b, of_right[OWN])

    def slope(b):
        return total(jnp.sum(jax.grad(loss, 1)(arguments[0], b) ** 2))

    of_slope = jax.grad(lambda b: jnp.sum(jax.grad(alone, 1)(matrix, b) ** 2))(RIGHT)
    assert_close(jax.jit(jax.grad(slope))(arguments[1]), of_slope[OWN], 1e-6)


@every_solver
def test_fields_of_a_plan(name):
    """The operator reads ghosts, and its result has other ghosts, which do not count."""
    plan = halo.Plan(COMM.Create_cart([SIZE], periods=[False]), shape=(N,))
    weights = np.linspace(1, 2, N)

    def laplacian(w, u):
        around = u[:-2] + u[2:]
        skew = 0 if name == "CG" else 0.3 * (u[2:] - u[:-2])
        return u.at[1:-1].set(3 * w[1:-1] * u[1:-1] - around + skew)

    def loss(w, b):
        like = jax.eval_shape(lambda: b)
        tags = lx.positive_semidefinite_tag if name == "CG" else ()
        operator = lx.FunctionLinearOperator(lambda u: laplacian(w, u), like, tags)
        solver = getattr(linalg, name)(rtol=1e-12, plan=plan)
        x = lx.linear_solve(operator, b, solver).value
        # Ghosts are filled, and are read here.
        parts = jnp.sum(jnp.sin(x[1:-1] * x[2:]))
        return total(parts), x

    def alone(w, b):
        matrix = jax.jacobian(lambda u: laplacian(jnp.pad(w, 1), jnp.pad(u, 1))[1:-1])(b)
        x = jnp.pad(jnp.linalg.solve(matrix, b), (0, 1))
        return jnp.sum(jnp.sin(x[:-1] * x[1:])), x[:-1]

    fields = plan.scatter(weights), plan.scatter(RIGHT)
    gradient, x = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(*fields)
    expected, whole = jax.grad(alone, (0, 1), has_aux=True)(weights, RIGHT)
    assert_close(plan.without_ghosts(x), whole[OWN])
    for actual, other in zip(gradient, expected, strict=True):
        assert_close(plan.without_ghosts(actual), other[OWN])
        assert not np.any(actual[0])


def test_failures():
    columns, b = jnp.asarray(matrix_of("GMRES")[:, OWN]), jnp.asarray(RIGHT[OWN])
    operator = operator_of("GMRES", columns)
    few = linalg.GMRES(rtol=1e-12, max_steps=1)

    @jax.jit
    def outcome(b):
        solution = lx.linear_solve(operator, b, few, throw=False)
        return solution.result == lx.RESULTS.max_steps_reached, solution.stats["num_steps"]

    assert outcome(b) == (True, 1)
    with pytest.raises(ValueError, match="linalg.CG got an operator without a tag"):
        lx.linear_solve(operator, b, linalg.CG())
    with pytest.raises(TypeError, match="linalg.BiCGStab: `plan` must be a plan"):
        linalg.BiCGStab(plan=3)


# Diffusion with a reaction, in a row of cells that is divided.

CELLS = 8 * SIZE
START = np.sin(np.arange(CELLS)) + 1


def rate_alone(u, k):
    left, right = jnp.roll(u, 1), jnp.roll(u, -1)
    return k * (left - 2 * u + right) - u**3


def rate_of(plan):
    def rate(u, k):
        u = plan.with_ghosts(u)
        return k * (u[:-2] - 2 * u[1:-1] + u[2:]) - u[1:-1] ** 3

    return rate


def solved(rate, solver, controller, u, k):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, u, k: rate(u, k)),
        solver,
        0.0,
        1.0,
        0.1,
        u,
        k,
        stepsize_controller=controller,
    )


@pytest.mark.parametrize("kind", ["explicit", "implicit"])
def test_diffrax(kind):
    plan = halo.Plan(COMM.Create_cart([SIZE], periods=[True]), shape=(CELLS,))
    tolerances = {"rtol": 1e-6, "atol": 1e-8}

    def solver_with(linear_solver, norm):
        if kind == "explicit":
            return diffrax.Tsit5()
        finder = diffrax.VeryChord(**tolerances, norm=norm, linear_solver=linear_solver)
        return diffrax.Kvaerno5(root_finder=finder)

    def of_part(u, k):
        norm = linalg.rms_norm()
        controller = diffrax.PIDController(**tolerances, norm=norm)
        solver = solver_with(linalg.GMRES(rtol=1e-10), norm)
        solution = solved(rate_of(plan), solver, controller, u, mpi.shared(k))
        return total(jnp.sum(solution.ys**2)), solution

    def of_all(u, k):
        controller = diffrax.PIDController(**tolerances)
        solver = solver_with(lx.AutoLinearSolver(well_posed=None), optx.rms_norm)
        solution = solved(rate_alone, solver, controller, u, k)
        return jnp.sum(solution.ys**2), solution

    own = slice(8 * RANK, 8 * RANK + 8)
    if kind == "implicit":
        # Diffrax chooses the solver for derivatives, one for the matrix of a whole system.
        _, solution = jax.jit(of_part)(jnp.asarray(START[own]), 2.0)
        _, whole = jax.jit(of_all)(jnp.asarray(START), 2.0)
    else:
        run = {"argnums": (0, 1), "has_aux": True}
        slope, slope_alone = (jax.jit(jax.grad(f, **run)) for f in (of_part, of_all))
        (of_u, of_k), solution = slope(jnp.asarray(START[own]), 2.0)
        (all_u, all_k), whole = slope_alone(jnp.asarray(START), 2.0)
        assert_close(of_u, all_u[own], 1e-6)
        assert_close(of_k, all_k, 1e-6)
        assert len({*COMM.allgather(float(of_k))}) == 1
    assert solution.stats["num_steps"] == whole.stats["num_steps"]
    assert_close(solution.ys[0], whole.ys[0, own], 1e-7)


def test_newton():
    plan = halo.Plan(COMM.Create_cart([SIZE], periods=[True]), shape=(CELLS,))
    own = slice(8 * RANK, 8 * RANK + 8)

    def root(rate, newton, u, k, *adjoint):
        """The end of an implicit step."""

        def residual(v, arguments):
            u, k = arguments
            return v - u - 0.5 * rate(v, k)

        adjoint = optx.ImplicitAdjoint(*adjoint)
        return optx.root_find(residual, newton, u, (u, k), adjoint=adjoint).value

    def of_part(u, k):
        gmres = linalg.GMRES(1e-12)
        newton = optx.Newton(1e-10, 1e-10, norm=linalg.max_norm(), linear_solver=gmres)
        return total(jnp.sum(root(rate_of(plan), newton, u, mpi.shared(k), gmres) ** 2))

    def of_all(u, k):
        return jnp.sum(root(rate_alone, optx.Newton(1e-10, 1e-10), u, k) ** 2)

    mine = jax.jit(jax.value_and_grad(of_part, (0, 1)))(jnp.asarray(START[own]), 0.5)
    whole = jax.jit(jax.value_and_grad(of_all, (0, 1)))(jnp.asarray(START), 0.5)
    assert_close(mine[0], whole[0])
    assert_close(mine[1][0], whole[1][0][own], 1e-7)
    assert_close(mine[1][1], whole[1][1], 1e-7)
