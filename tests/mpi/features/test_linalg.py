"""Sums and solvers on divided vectors, against NumPy on whole ones."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import linalg, unstructured
from mpi4jax import notoken as mpi
from mpi4jax.halo import Plan

world = MPI.COMM_WORLD
RANK, SIZE = world.Get_rank(), world.Get_size()

pytestmark = pytest.mark.usefixtures("enable_x64")

pipelined = functools.partial(linalg.cg, pipelined=True)
SOLVERS = {
    "cg": linalg.cg,
    "pipelined": pipelined,
    "bicgstab": linalg.bicgstab,
    "gmres": linalg.gmres,
}
every_solver = pytest.mark.parametrize("name", SOLVERS)
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
N = 31


def own(x, axis=0, comm=world):
    """The rows of this process: parts differ in size, and the last one may be empty."""
    ends = np.linspace(0, x.shape[axis], comm.size + 1).astype(int)
    ends[1:-1] += 1
    part = np.arange(ends[comm.rank], ends[comm.rank + 1])
    return jnp.take(jnp.asarray(x), part, axis)


def random(generator, shape, dtype):
    x = generator.normal(size=shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def system(name, dtype, seed=0):
    """A matrix that suits a solver, and a right-hand side."""
    generator = np.random.default_rng(seed)
    matrix = random(generator, (N, N), dtype) / np.sqrt(N).astype(dtype)
    if name in ("cg", "pipelined"):
        matrix = matrix @ matrix.conj().T
    matrix += np.diag(generator.uniform(1, 3, N)).astype(dtype)
    return matrix, random(generator, N, dtype)


def by_columns(columns, comm=world):
    """The product with a matrix of which each process has columns."""
    counts = comm.allgather(columns.shape[1])

    def product(v):
        return mpi.reduce_scatterv(columns @ v, op=MPI.SUM, counts=counts, comm=comm)

    return product


def whole_of(x):
    return np.concatenate(world.allgather(np.asarray(x)))


# Solvers.


@every_solver
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_preconditioner", [False, True])
def test_solution(name, dtype, with_preconditioner):
    matrix, b = system(name, dtype)
    diagonal = own(np.diag(matrix))
    options = {"M": lambda v: v / diagonal} if with_preconditioner else {}
    tol = 1e-5 if np.finfo(dtype).bits == 32 else 1e-12
    solve = SOLVERS[name]
    x, info = solve(by_columns(own(matrix, 1)), own(b), rtol=tol, **options)
    assert x.dtype == dtype
    whole = whole_of(x)
    residual = np.linalg.norm(b - matrix @ whole)
    limit = tol * np.linalg.norm(b)
    assert residual <= 1.5 * limit
    assert info.converged
    assert info.residual <= limit
    np.testing.assert_allclose(info.residual, residual, rtol=0.5)
    np.testing.assert_allclose(whole, np.linalg.solve(matrix, b), atol=100 * tol)
    assert len({*world.allgather(tuple(map(float, info)))}) == 1
    alone = by_columns(jnp.asarray(matrix), MPI.COMM_SELF)
    options = {"M": lambda v: v / np.diag(matrix)} if with_preconditioner else {}
    _, info_alone = solve(alone, b, rtol=tol, comm=MPI.COMM_SELF, **options)
    assert abs(int(info.iterations - info_alone.iterations)) <= 2
    assert 3 < info_alone.iterations <= 3 * N


@every_solver
def test_messages(name, calls_of):
    """Those of one iteration are as documented."""
    matrix, b = system(name, np.float64)
    product = by_columns(own(matrix, 1))

    def calls(maxiter):
        solve = jax.jit(lambda b: SOLVERS[name](product, b, rtol=0, maxiter=maxiter))
        (_, info), calls = calls_of(solve, own(b))
        assert info.iterations == maxiter
        assert not info.converged
        assert info.reason == linalg.Reason.MAXITER
        return calls

    more, less = calls(7), calls(5)
    more.subtract(less)
    more.pop("Reduce_scatter", None)
    expected = {
        "cg": {"Allreduce": 2},
        "pipelined": {"Iallreduce": 2, "Waitall": 2},
        "bicgstab": {"Allreduce": 4},
        "gmres": {"Allreduce": 4},
    }
    assert {call: n for call, n in more.items() if n} == expected[name]
    # Norms at the start and at the end of the cycle, and the product in flight.
    assert less["Allreduce"] <= expected[name].get("Allreduce", 0) / 2 * 5 + 5


@every_solver
def test_trees(name):
    matrix, b = system(name, np.float64)
    product = by_columns(own(matrix, 1))
    counts = len(own(b)) // 2

    def split(v):
        return {"first": v[:counts], "others": [v[counts:]]}

    def join(tree):
        return jnp.concatenate([tree["first"], tree["others"][0]])

    x, info = SOLVERS[name](lambda v: split(product(join(v))), split(own(b)), rtol=1e-10)
    assert info.converged
    np.testing.assert_allclose(join(x), own(np.linalg.solve(matrix, b)), atol=1e-8)


@every_solver
def test_start(name):
    matrix, b = system(name, np.float64)
    solution = np.linalg.solve(matrix, b)
    product = by_columns(own(matrix, 1))
    solve = functools.partial(SOLVERS[name], product, own(b))
    _, info = solve(own(solution), rtol=1e-10)
    assert info.iterations == 0
    assert info.converged
    _, cold = solve(rtol=1e-10)
    x, warm = solve(own(solution * (1 + 1e-5)), rtol=1e-10)
    assert 0 < warm.iterations < cold.iterations
    np.testing.assert_allclose(x, own(solution), atol=1e-8)


@every_solver
def test_limits(name):
    matrix, b = system(name, np.float64)
    product = by_columns(own(matrix, 1))
    solve = functools.partial(SOLVERS[name], product)
    x, info = solve(own(b), maxiter=3)
    assert info.iterations == 3
    assert not info.converged
    residual = np.linalg.norm(b - matrix @ whole_of(x))
    np.testing.assert_allclose(info.residual, residual, rtol=1e-10)
    x, info = solve(own(b), maxiter=0)
    assert info.iterations == 0
    assert not np.any(x)
    x, info = solve(0 * own(b))
    assert info.iterations == 0
    assert info.converged
    assert not np.any(x)
    size = np.linalg.norm(b)
    _, info = solve(own(b), rtol=0, atol=1e-3 * size)
    assert info.converged
    assert 1e-6 * size < info.residual <= 1e-3 * size
    _, info = solve(own(b) * np.nan)
    assert not info.converged
    assert info.reason == linalg.Reason.NOT_FINITE


@every_solver
def test_no_solution(name):
    """Of a singular system: it has not converged, and all values are finite."""
    diagonal = np.arange(N) * 1.0
    x, info = SOLVERS[name](lambda v: own(diagonal) * v, own(np.ones(N)), maxiter=100)
    assert not info.converged
    assert info.reason in (linalg.Reason.STAGNATED, linalg.Reason.MAXITER)
    assert np.all(np.isfinite(x))
    assert np.isfinite(info.residual)


def test_the_solution_in_one_step():
    for name, solve in SOLVERS.items():
        x, info = solve(lambda v: 2 * v, own(np.arange(1.0, N)), rtol=0)
        np.testing.assert_array_equal(x, own(np.arange(1.0, N)) / 2, err_msg=name)
        assert info.converged, name
        assert info.reason == linalg.Reason.CONVERGED
        assert info.iterations <= 2, name


def test_a_breakdown_is_a_restart():
    """Of a skew-symmetric part alone, the first shadow residual is orthogonal to `v`."""
    matrix = np.kron(np.eye(N), [[0, 1], [-1, 0]]) + np.diag(np.arange(2 * N) % 4 == 3)
    b = np.random.default_rng(0).normal(size=2 * N)
    b[2::4] = b[3::4] = 0
    x, info = linalg.bicgstab(by_columns(own(matrix, 1)), own(b), rtol=1e-9)
    assert np.all(np.isfinite(x))
    residual = np.linalg.norm(b - matrix @ whole_of(x))
    np.testing.assert_allclose(info.residual, residual, rtol=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_gmres_with_few_vectors(seed):
    matrix, b = system("gmres", np.float64, seed)
    product = by_columns(own(matrix, 1))
    x, info = linalg.gmres(product, own(b), rtol=1e-9, restart=4)
    assert info.converged, seed
    np.testing.assert_allclose(whole_of(x), np.linalg.solve(matrix, b), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_preconditioner", [False, True])
def test_gmres_has_the_iterations_of_scipy(dtype, with_preconditioner):
    """One more at most, which comes before the residual is known on all processes."""
    solvers = pytest.importorskip("scipy.sparse.linalg")
    matrix, b = system("gmres", dtype)
    scale = np.diag(matrix) if with_preconditioner else np.ones(N, dtype)
    tol = 1e-5 if np.finfo(dtype).bits == 32 else 1e-12
    residuals = []
    solvers.gmres(
        matrix / scale, b, rtol=tol, callback=residuals.append, callback_type="pr_norm"
    )
    product = by_columns(own(matrix, 1))
    _, info = linalg.gmres(product, own(b), rtol=tol, M=lambda v: v / own(scale))
    assert info.converged
    assert info.iterations - len(residuals) in (0, 1)
    assert len(residuals) > 15


def test_accuracy():
    """One reduction costs digits, which the repetition from the solution gives back.

    Pipelined iterations cost more, of which some are lost.
    """
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.normal(size=(N, N)))[0]
    matrix = (basis * np.logspace(0, 6, N)) @ basis.T
    solution = generator.normal(size=N)
    product = by_columns(own(matrix, 1))
    for name, tol in (("cg", 1e-13), ("pipelined", 1e-10)):
        _, info = SOLVERS[name](product, own(matrix @ solution), rtol=tol, maxiter=4000)
        assert info.converged, name


# Derivatives.


@every_solver
@pytest.mark.parametrize(
    ("dtype", "with_start"), [(np.float64, False), (np.complex128, True)]
)
def test_gradients(name, dtype, with_start):
    matrix, b = system(name, dtype)
    _, weights = system(name, dtype, seed=1)
    start = own(b) if with_start else None
    is_hermitian = name in ("cg", "pipelined")
    diagonal = own(np.diag(matrix))

    def loss(columns, b):
        x, _ = SOLVERS[name](
            by_columns(columns), b, start, rtol=1e-13, M=lambda v: v / diagonal
        )
        return linalg.vdot(own(weights), x).real + linalg.norm(x) ** 2

    def dense(matrix, b):
        x = jnp.linalg.solve(matrix, b)
        return jnp.vdot(weights, x).real + jnp.linalg.norm(x) ** 2

    parts = own(matrix, 1), own(b)
    of_both = (0, 1)
    results = jax.jit(jax.grad(loss, of_both))(*parts)
    expected = jax.grad(dense, of_both)(matrix, b)
    np.testing.assert_allclose(results[0], own(expected[0], 1), atol=1e-9)
    np.testing.assert_allclose(results[1], own(expected[1]), atol=1e-9)

    direction = system(name, dtype, seed=2)
    _, tangent = jax.jit(functools.partial(jax.jvp, loss))(
        parts, (own(direction[0], 1), own(direction[1]))
    )
    _, expected = jax.jvp(dense, (matrix, b), direction)
    np.testing.assert_allclose(tangent, expected, atol=1e-9)

    def slope(b):
        return linalg.vdot(own(direction[1]), jax.grad(loss, 1)(parts[0], b)).real

    def dense_slope(b):
        return jnp.vdot(direction[1], jax.grad(dense, 1)(matrix, b)).real

    second = jax.jit(jax.grad(slope))(parts[1])
    np.testing.assert_allclose(second, own(jax.grad(dense_slope)(b)), atol=1e-9)
    assert is_hermitian == np.allclose(matrix, matrix.conj().T)


def test_a_start_is_none_for_derivatives():
    """In float32, a gradient would lose its digits beside a far start."""
    matrix, b = system("cg", np.float32)
    product = by_columns(own(matrix, 1))
    solution = np.linalg.solve(matrix, b)

    def loss(b, start):
        return 1e-6 * linalg.sum(linalg.cg(product, b, start, rtol=1e-6)[0])

    for_b, for_start = jax.grad(loss, (0, 1))(own(b), own(solution))
    expected = np.linalg.solve(matrix, np.full(N, 1e-6, np.float32))
    np.testing.assert_allclose(for_b, own(expected), rtol=1e-3)
    assert not np.any(for_start)


@every_solver
def test_vmap(name):
    matrix, b = system(name, np.float64)
    batch = np.stack([b, np.cos(b), 1e-3 * b[::-1], 0 * b])
    product = by_columns(own(matrix, 1))

    def solve(b):
        return SOLVERS[name](product, b, rtol=1e-11)

    results, info = jax.jit(jax.vmap(solve))(own(batch, 1))
    expected = np.linalg.solve(matrix, batch.T).T
    np.testing.assert_allclose(results, own(expected, 1), atol=1e-8)
    assert np.all(info.converged)
    assert info.iterations[3] == 0
    gradient = jax.vmap(jax.grad(lambda b: linalg.sum(solve(b)[0])))(own(batch, 1))
    expected = np.linalg.solve(matrix.T, np.ones(N))
    np.testing.assert_allclose(gradient[1], own(expected), atol=1e-8)
    np.testing.assert_allclose(gradient[3], own(expected), atol=1e-8)


# Plans.

SHAPE = (9, 7)


@functools.cache
def plan():
    grid = world.Create_cart(MPI.Compute_dims(SIZE, 2), (True, False))
    return Plan(grid, shape=SHAPE)


def stencil(conductivity, u):
    """A field of the plan, of which the ghost points are wrong."""
    neighbors = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + 0.5 * u[1:-1, 2:]
    inner = (4.1 + conductivity) * u[1:-1, 1:-1] - neighbors
    return jnp.pad(inner, 1, constant_values=np.nan)


def dense_stencil(conductivity, is_symmetric):
    def apply(u):
        u = jnp.pad(jnp.pad(u, ((1, 1), (0, 0)), mode="wrap"), ((0, 0), (1, 1)))
        return stencil_of(conductivity, u, is_symmetric)[1:-1, 1:-1]

    return apply


def stencil_of(conductivity, u, is_symmetric):
    result = stencil(conductivity, u)
    if is_symmetric:
        result = result.at[1:-1, 1:-1].add(-0.5 * u[1:-1, 2:])
    return result


@every_solver
def test_fields_of_a_plan(name):
    is_symmetric = name in ("cg", "pipelined")
    whole = np.random.default_rng(0).normal(size=SHAPE)
    conductivity = np.random.default_rng(1).uniform(0, 2, SHAPE)
    jacobian = jax.jacobian(dense_stencil(conductivity, is_symmetric))(whole)
    matrix = jacobian.reshape(whole.size, whole.size)
    expected = np.linalg.solve(matrix, whole.ravel()).reshape(SHAPE)
    own_conductivity = plan().without_ghosts(plan().scatter(conductivity))

    def solve(conductivity, b):
        def A(u):
            return stencil_of(conductivity, u, is_symmetric)

        def M(u):
            return jnp.pad(u[1:-1, 1:-1] / (4.1 + conductivity), 1, constant_values=np.nan)

        return SOLVERS[name](A, b, b, rtol=1e-11, M=M, plan=plan())

    b = jnp.pad(plan().without_ghosts(plan().scatter(whole)), 1, constant_values=np.nan)
    x, info = solve(own_conductivity, b)
    assert info.converged
    np.testing.assert_allclose(x, plan().scatter(expected), atol=1e-8)

    def loss(conductivity, b):
        x, _ = solve(conductivity, b)
        return linalg.vdot(jnp.sin(x), x, plan=plan())

    def dense(conductivity, b):
        jacobian = jax.jacobian(dense_stencil(conductivity, is_symmetric))(b)
        x = jnp.linalg.solve(jacobian.reshape(b.size, b.size), b.ravel())
        return jnp.vdot(jnp.sin(x), x)

    of_both = (0, 1)
    gradients = jax.jit(jax.grad(loss, of_both))(own_conductivity, b)
    expected = jax.grad(dense, of_both)(conductivity, whole)
    inner = plan().without_ghosts(plan().scatter(expected))
    np.testing.assert_allclose(gradients[0], inner[0], atol=1e-9)
    np.testing.assert_allclose(plan().without_ghosts(gradients[1]), inner[1], atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
@every_solver
def test_rows_of_an_unstructured_plan(name, seed):
    """Each process has ghosts of all points, in an order of its own, and may own none."""
    matrix, b = system(name, np.float64, seed)
    owners = np.random.default_rng(seed).integers(min(seed, SIZE - 1), SIZE, N)
    ids = np.random.default_rng([seed, RANK]).permutation(N)
    rows = unstructured.Plan.from_global(ids, owners[ids] == RANK, comm=world)
    entries = jnp.asarray(matrix[np.ix_(ids, ids)])
    weights = np.random.default_rng(seed).uniform(0, 1, N)

    def own_rows(u):
        return jnp.where(rows.owned, u, np.nan)

    def loss(weights, b):
        x, info = SOLVERS[name](
            lambda u: own_rows(entries @ u + weights * u),
            own_rows(b),
            rtol=1e-12,
            M=lambda u: own_rows(u / jnp.diag(entries)),
            plan=rows,
        )
        return linalg.vdot(jnp.sin(x), x, plan=rows), (x, info)

    def dense(weights, b):
        x = jnp.linalg.solve(matrix + jnp.diag(weights), b)
        return jnp.vdot(jnp.sin(x), x), x

    of_both = jax.value_and_grad(loss, (0, 1), has_aux=True)
    (value, (x, info)), gradients = jax.jit(of_both)(weights[ids], b[ids])
    of_both = jax.value_and_grad(dense, (0, 1), has_aux=True)
    (expected, solution), expected_gradients = of_both(weights, b)
    assert info.converged
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(x, solution[ids], atol=1e-9)
    for gradient, each in zip(gradients, expected_gradients, strict=True):
        actual, own_ids = rows.without_ghosts(gradient), ids[rows.owned]
        np.testing.assert_allclose(actual, each[own_ids], atol=1e-9)


def test_sums_of_a_plan():
    whole = np.random.default_rng(0).normal(size=(2, *SHAPE))
    x, y = (plan().scatter(each, fill_value=np.nan) for each in whole)
    for reproducible in (False, True):
        options = {"plan": plan(), "reproducible": reproducible}
        total = linalg.sum({"x": x, "y": y}, **options)
        np.testing.assert_allclose([total["x"], total["y"]], whole.sum((1, 2)))
        np.testing.assert_allclose(linalg.vdot(x, y, **options), np.vdot(*whole))
        norm = linalg.norm([x, y], **options)
        np.testing.assert_allclose(norm, np.sqrt(np.sum(whole**2)))


def test_sums_count_shared_points_once():
    """Three processes at most have each point, and one of them owns it."""
    ids = np.unique((np.arange(9) + 3 * RANK) % (3 * SIZE + 2))
    rows = unstructured.Plan.from_global(ids, comm=world)
    whole = np.random.default_rng(0).normal(size=(3 * SIZE + 2, 2))
    points = sorted({*np.concatenate(world.allgather(ids)).tolist()})
    x = jnp.asarray(whole[ids])
    x = x.at[rows.ghost_rows].set(np.nan)
    expected = whole[points]
    for reproducible in (False, True):
        options = {"plan": rows, "reproducible": reproducible}
        np.testing.assert_allclose(linalg.sum(x, **options), expected.sum())
        square = np.sum(expected**2)
        np.testing.assert_allclose(linalg.vdot(x, 2 * x, **options), 2 * square)
        np.testing.assert_allclose(linalg.norm(x, **options), np.sqrt(square))


# Sums.


def test_sums(calls_of):
    x = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
    z = np.exp(1j * x[:, 0])
    numbers = np.arange(N)
    tree = {"x": x, "z": z, "numbers": numbers, "bools": numbers > 3}
    results, calls = calls_of(jax.jit(linalg.sum), jax.tree.map(own, tree))
    assert calls == {"Allreduce": 3}
    for name, result in results.items():
        np.testing.assert_allclose(result, tree[name].sum(), rtol=1e-5, err_msg=name)
    assert results["numbers"].dtype == jnp.int64
    assert results["x"].dtype == jnp.float32
    pairs = [(x, x), (z, 1j * z), (x[:, 0], z)]
    parts = jax.tree.map(own, pairs)
    for pair, of_pair in zip(pairs, parts, strict=True):
        result, calls = calls_of(jax.jit(linalg.vdot), *of_pair)
        assert calls["Allreduce"] == 1
        np.testing.assert_allclose(result, np.vdot(*pair), rtol=1e-5)
        np.testing.assert_allclose(linalg.vdot(*of_pair), result, rtol=1e-5)
    expected = 2 * np.sum(x**2) + np.sum(x[:, 0] ** 2) + 3 * N
    np.testing.assert_allclose(linalg.vdot(parts, parts), expected, rtol=1e-5)
    half = own(x.astype(np.float16))
    assert linalg.vdot(half, half).dtype == jnp.float32


def test_derivatives_of_sums():
    x = np.random.default_rng(0).normal(size=N)
    y = np.cos(x)
    for reproducible in (False, True):

        def loss(x, y, reproducible=reproducible):
            options = {"reproducible": reproducible}
            product = linalg.vdot(jnp.sin(x), y, **options)
            return product * linalg.norm(x, **options) + linalg.sum(x**3, **options)

        def dense(x, y):
            return jnp.vdot(jnp.sin(x), y) * jnp.linalg.norm(x) + jnp.sum(x**3)

        for transform in (lambda f: f, jax.jit):
            results = transform(jax.grad(loss, (0, 1)))(own(x), own(y))
            for result, each in zip(results, jax.grad(dense, (0, 1))(x, y), strict=True):
                np.testing.assert_allclose(result, own(each), rtol=1e-11)
        _, tangent = jax.jvp(loss, (own(x), own(y)), (own(y), own(x)))
        _, expected = jax.jvp(dense, (x, y), (y, x))
        np.testing.assert_allclose(tangent, expected, rtol=1e-11)


def bits(x):
    return np.asarray(x).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_reproducible_sums(dtype, seed):
    """Sums are accurate, and bit by bit one process's, in any order and division."""
    generator = np.random.default_rng(seed)
    size = int(generator.choice([1, 5, 5000, 40000]))
    spread = generator.choice([0, 3, 12])
    scale = 10.0 ** generator.integers(-spread, spread + 1, (2, size))
    x, y = random(generator, (2, size), dtype) * scale.astype(dtype(0).real.dtype)
    if seed % 3 == 1:
        x[size // 2 :] = -x[: size - size // 2]  # all cancels
    total = functools.partial(linalg.sum, reproducible=True)
    product = functools.partial(linalg.vdot, reproducible=True)
    alone = {"reproducible": True, "comm": MPI.COMM_SELF}
    expected = linalg.sum(x, **alone), linalg.vdot(x, y, **alone)
    epsilon = np.finfo(dtype).eps
    for part in (np.real, np.imag):
        exact = math.fsum(part(x).tolist())
        bound = 2 * epsilon * abs(exact) + size * epsilon**1.8 * np.max(np.abs(x))
        assert abs(part(expected[0]) - exact) <= bound, seed

    @jax.jit
    def sums(x, y):
        # The second product is in a program that XLA could fuse with.
        products = product(x, y), product(x[::-1] * 2, jnp.flip(y / 2))
        return *jax.vmap(total)(jnp.stack([x, 0 * x])), *products

    cuts = np.sort(generator.integers(0, size + 1, SIZE - 1))
    for _ in range(3):
        rows = np.split(generator.permutation(size), cuts)[RANK]
        assert bits(total(x[rows])) == bits(expected[0]), seed
        of_batch, of_zeros, *products = sums(x[rows], y[rows])
        assert bits(of_batch) == bits(expected[0]), seed
        assert of_zeros == 0, seed
        assert [bits(each) for each in products] == 2 * [bits(expected[1])], seed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reproducible_sums_of_special_values(dtype):
    info = np.finfo(dtype)
    largest, tiny = info.max, info.tiny
    cases = {
        (): 0,
        (0.0, -0.0): 0,
        (np.inf, 1): np.inf,
        (1, -np.inf): -np.inf,
        (np.inf, -np.inf): np.nan,
        (np.nan, 1, np.inf): np.nan,
        (largest, largest, -largest): largest,
        (largest, largest): np.inf,
        (-largest, -largest): -np.inf,
        (tiny, -3 * tiny): -2 * tiny,
        (largest, 1, -largest): 0,  # it is too small beside these
        (1, info.eps / 2, info.eps / 2): 1 + info.eps,
    }
    for elements, expected in cases.items():
        for shift in range(3):
            # Each element is on another process, some of which have none.
            x = np.roll(np.array(elements, dtype), shift)[RANK::SIZE]
            result = linalg.sum(x, reproducible=True)
            np.testing.assert_array_equal(result, dtype(expected), err_msg=str(elements))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reproducible_sums_of_small_numbers(dtype):
    """Some are subnormal, as are some products and the sums of others."""
    tiny = np.finfo(dtype).tiny
    generator = np.random.default_rng(0)
    x = (generator.normal(size=99) * tiny).astype(dtype)
    y = generator.normal(size=99).astype(dtype)
    alone = {"reproducible": True, "comm": MPI.COMM_SELF}
    total = linalg.sum(x[RANK::SIZE], reproducible=True)
    assert bits(total) == bits(linalg.sum(x[::-1], **alone))
    product = linalg.vdot(x[RANK::SIZE], y[RANK::SIZE], reproducible=True)
    assert bits(product) == bits(linalg.vdot(x, y, **alone))
    np.testing.assert_allclose(total, math.fsum(x.tolist()), atol=99 * tiny)


def test_reproducible_sums_are_one_message(calls_of):
    total = jax.jit(functools.partial(linalg.vdot, reproducible=True))
    _, calls = calls_of(total, jnp.arange(3.0), jnp.arange(3.0))
    assert calls == {"Allreduce": 1}


# Errors.


def rejected(error, text, function, *args, **kwargs):
    with pytest.raises(error, match=text):
        function(*args, **kwargs)


@every_solver
def test_errors(name):
    solve = SOLVERS[name]
    b = np.ones(4)

    def identity(v):
        return v

    def check(error, text, *args, **kwargs):
        rejected(error, text, solve, *args, **kwargs)

    function = rf"linalg.{name.replace('pipelined', 'cg')}"
    check(TypeError, rf"{function}: `A` must be a function", np.eye(4), b)
    check(TypeError, "`M` must be a function", identity, b, M=np.eye(4))
    check(TypeError, "`b` must be an array, or a tree with arrays", identity, {})
    check(TypeError, rf"{function} got an array of type int64 for `b", identity, [1, b])
    check(TypeError, "`plan` must be a plan such as", identity, b, plan=world)
    check(TypeError, "`plan` must be a plan such as", identity, b, plan=Plan)
    check(ValueError, "both arguments `plan` and", identity, b, plan=plan(), comm=world)
    check(ValueError, "-1 for argument `maxiter`", identity, b, maxiter=-1)
    check(TypeError, "`maxiter` must be an integer", identity, b, maxiter=1.5)
    check(ValueError, r"the result of A, expected float64 and \(4,\)", lambda v: v[1:], b)
    check(ValueError, "float64 and shape .* the result of M", identity, b, M=jnp.sum)
    check(ValueError, "complex128 and shape", lambda v: 1j * v, b)
    check(ValueError, "tree .* for the result of A, expected that", lambda v: [v], b)
    check(ValueError, "for argument `x0`, expected float64", identity, b, b[1:])
    staggered = plan().scatter(np.ones((SHAPE[0], SHAPE[1] + 1)))
    check(ValueError, "got a staggered field", identity, staggered, plan=plan())


def test_errors_of_sums():
    x = np.ones(4)
    rejected(ValueError, "shapes .* expected equal", linalg.vdot, x, x[1:])
    rejected(ValueError, "expected equal ones", linalg.vdot, x, [x])
    rejected(TypeError, "linalg.sum: `x.1.` must be an array", linalg.sum, [x, "x"])
    rejected(TypeError, "`plan` must be a plan", linalg.norm, x, plan=3)
    rejected(ValueError, "1 or more", linalg.gmres, lambda v: v, x, restart=0)


@every_solver
def test_right_hand_sides_whose_squares_are_no_numbers(name):
    """Fails if a norm overflows or underflows, or if what is infinite has converged."""
    for size in (1e20, 1e-24, 1e38, 1e-30, np.inf, np.nan):
        b = jnp.full(3, size, jnp.float32)
        x, info = SOLVERS[name](lambda v: 2 * v, b, rtol=1e-4)
        assert info.converged == np.isfinite(size), size
        if info.converged:
            np.testing.assert_allclose(x, b / 2, rtol=1e-4)
            assert info.residual <= 1e-4 * size * math.sqrt(3 * SIZE)


def test_norms_of_short_numbers():
    for dtype in (np.bool_, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.float16):
        most = 60_000 if dtype == np.float16 else 1 if dtype == np.bool_ else None
        x = np.full(4, np.iinfo(dtype).max if most is None else most, dtype)
        expected = np.linalg.norm(np.tile(x.astype(float), SIZE))
        np.testing.assert_allclose(linalg.norm(jnp.asarray(x)), expected, rtol=1e-6)


# Norms for other libraries.


def square_mean(x):
    return np.sqrt(np.mean(np.abs(x) ** 2))


def largest(x):
    return np.max(np.abs(x))


norms = pytest.mark.parametrize(
    ("make", "expected"),
    [(linalg.rms_norm, square_mean), (linalg.max_norm, largest)],
    ids=["rms", "max"],
)


@norms
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(make, expected, dtype):
    x = random(np.random.default_rng(0), N, dtype)
    y = np.arange(2 * N).reshape(N, 2) / np.float32(8)
    norm = make()
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    for call in (norm, jax.jit(norm)):
        close(call(own(x)), expected(x))
        result = call({"x": own(x), "y": (own(y), None)})
        close(result, expected(np.concatenate([x, y.ravel()])))
        close(call(own(np.arange(N))), expected(np.arange(N)))
        assert len({*world.allgather(float(result))}) == 1
    close(make(comm=MPI.COMM_SELF)(x), expected(x))


@norms
def test_norms_of_fields(make, expected):
    """Ghosts do not count, and a number beside fields counts once on each process."""
    grid = world.Create_cart([SIZE, 1], periods=[True, True])
    plan = Plan(grid, shape=(N, 4))
    x = np.random.default_rng(0).normal(size=(N, 4))
    norm = make(plan)
    # Ghosts are large.
    field = (
        jnp.full_like(plan.scatter(x), 1e9)
        .at[1:-1, 1:-1]
        .set(plan.without_ghosts(plan.scatter(x)))
    )
    np.testing.assert_allclose(jax.jit(norm)(field), expected(x), rtol=1e-12)
    with_numbers = np.concatenate([x.ravel(), [5.0] * SIZE])
    np.testing.assert_allclose(norm((field, 5.0)), expected(with_numbers), rtol=1e-12)
    np.testing.assert_allclose(norm(-5.0), 5.0)


@norms
def test_derivatives_of_norms(make, expected, calls_of):
    x = np.random.default_rng(0).normal(size=N)
    norm = make()
    gradient = jax.jit(jax.grad(norm))(own(x))
    alone = jax.grad(
        lambda x: (
            jnp.max(jnp.abs(x)) if make is linalg.max_norm else jnp.sqrt((x**2).mean())
        )
    )(x)
    np.testing.assert_allclose(gradient, own(alone), rtol=1e-12)
    assert not np.any(jax.grad(linalg.rms_norm())(jnp.zeros(3)))


@norms
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_norms_of_what_is_not_finite(make, expected, number):
    """All processes agree: with NaN, a maximum of MPI's may differ between them."""
    x = np.ones(3 * SIZE)
    x[SIZE] = number
    np.testing.assert_equal(np.asarray(jax.jit(make())(own(x))), expected(x))
    mine = jnp.full(2, number if RANK == SIZE - 1 else 1.0)
    np.testing.assert_equal(np.asarray(make()(mine)), number)


@norms
def test_norms_compare_by_value(make, expected):
    grid = world.Create_cart([SIZE], periods=[True])
    plan = Plan(grid, shape=(N,))
    pairs = [
        (make(plan), make(plan)),
        (make(), make()),
        (make(comm=world), make(comm=world)),
    ]
    for one, other in pairs:
        assert one == other
        assert hash(one) == hash(other)
    assert len({norm for norm, _ in pairs} | {linalg.rms_norm(), linalg.max_norm()}) == 4


@norms
def test_errors_of_norms(make, expected):
    name = f"linalg.{make.__name__}"
    with pytest.raises(TypeError, match=f"{name}: `plan` must be a plan"):
        make(3)
    with pytest.raises(ValueError, match=f"{name} got both arguments"):
        make(Plan(world.Create_cart([SIZE], periods=[True]), shape=(N,)), comm=world)
    with pytest.raises(ValueError, match=rf"{name} got \(\) for `x`"):
        make()(())
