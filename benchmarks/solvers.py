"""Sums over all processes, plain and reproducible, and conjugate gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from workloads import RANK, SIZE, WORLD, Effort, Samples, Thunk, import_mpi, take_turns

#: Number of elements of a rank.
ELEMENTS = (10, 1000, 100_000, 1_000_000)
#: Number of cells of a rank along each of two axes.
CELLS = (16, 64, 256, 1024)
#: Number of iterations of a solve, fewer if it is slow.
ITERATIONS = 60


def solvers(effort: Effort) -> Samples:
    """Times of an inner product in a loop, and of an iteration."""
    jax.config.update("jax_enable_x64", True)
    samples: Samples = {}
    for dtype in (np.float32, np.float64):
        for count in ELEMENTS:
            if count * 8 > effort.largest:
                continue
            length = max(5, min(effort.loop // 10, 10_000_000 // count))
            cases = inner_products(count, dtype, length)
            label = f"vdot, {np.dtype(dtype).name}, {count}"
            for case, seconds in take_turns(cases, effort).items():
                samples[f"{label}, {case}"] = [s / length for s in seconds]
    for cells in CELLS:
        if cells**2 * 8 > effort.largest:
            continue
        iterations = max(5, min(ITERATIONS, effort.loop, 10_000_000 // cells**2))
        cases = solves(cells, iterations)
        for case, seconds in take_turns(cases, effort).items():
            samples[f"cg, {cells}, {case}"] = [s / iterations for s in seconds]
    return samples


def inner_products(count: int, dtype: type, length: int) -> dict[str, Thunk]:
    """Loops of inner products, each of which depends on the one before."""
    from mpi4jax import linalg

    start = jnp.asarray(np.random.default_rng(RANK).normal(size=count), dtype)

    def loop_of(product: Callable[[jax.Array], jax.Array]) -> Thunk:
        def step(_: int, x: jax.Array) -> jax.Array:
            return x.at[0].set(jnp.tanh(product(x)))

        loop = jax.jit(lambda x: jax.lax.fori_loop(0, length, step, x))
        return lambda: loop(start).block_until_ready()

    return {
        "plain": loop_of(lambda x: linalg.vdot(x, x)),
        "reproducible": loop_of(lambda x: linalg.vdot(x, x, reproducible=True)),
        "local": loop_of(lambda x: jnp.vdot(x, x)),
    }


def solves(cells: int, iterations: int) -> dict[str, Thunk]:
    """Solves for a stencil of five points, with a Jacobi preconditioner."""
    from mpi4jax import halo, linalg

    grid = WORLD.Create_cart(MPI.Compute_dims(SIZE, 2), (False, False))
    plan = halo.Plan(grid)
    generator = np.random.default_rng(RANK)
    diagonal = jnp.asarray(generator.uniform(4.01, 5, (cells, cells)))
    right = jnp.asarray(generator.normal(size=(cells, cells)))
    with_ghosts = jnp.pad(diagonal, 1, constant_values=1)

    def product(u: jax.Array) -> jax.Array:
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return jnp.pad(diagonal * u[1:-1, 1:-1] - around, 1)

    def by_solver(pipelined: bool) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
        def solve(b: jax.Array) -> tuple[jax.Array, jax.Array]:
            x, info = linalg.cg(
                product,
                jnp.pad(b, 1),
                M=lambda r: r / with_ghosts,
                rtol=0,
                maxiter=iterations,
                plan=plan,
                pipelined=pipelined,
            )
            return x, info.iterations

        return solve

    ways = {
        "cg": by_solver(pipelined=False),
        "pipelined": by_solver(pipelined=True),
        "by hand": functools.partial(classical, plan, product, diagonal, iterations),
    }
    cases: dict[str, Thunk] = {}
    expected = None
    for name, way in ways.items():
        solve = jax.jit(way)
        x, done = solve(right)
        assert done == iterations, f"{name}: {done} iterations"
        inner = np.asarray(plan.without_ghosts(x))
        expected = inner if expected is None else expected
        np.testing.assert_allclose(inner, expected, atol=1e-6, err_msg=name)
        cases[name] = functools.partial(_awaited, solve, right)
    return cases


def _awaited(solve: Callable[[jax.Array], object], right: jax.Array) -> None:
    jax.block_until_ready(solve(right))


def classical(
    plan: Any,
    product: Callable[[jax.Array], jax.Array],
    diagonal: jax.Array,
    iterations: int,
    b: jax.Array,
) -> tuple[jax.Array, int]:
    """The method of Hestenes and Stiefel, with two allreduces in an iteration."""
    mpi = import_mpi()

    def vdot(x: jax.Array, y: jax.Array) -> jax.Array:
        return mpi.allreduce(jnp.vdot(x, y), op=MPI.SUM, comm=plan.comm)

    def step(_: int, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, r, p, gamma = state
        s = plan.without_ghosts(product(plan.with_ghosts(p)))
        alpha = gamma / vdot(p, s)
        x, r = x + alpha * p, r - alpha * s
        u = r / diagonal
        # The square of the norm would end the loop.
        products = jnp.stack([jnp.vdot(r, u), jnp.vdot(r, r)])
        of_r, _ = mpi.allreduce(products, op=MPI.SUM, comm=plan.comm)
        return x, r, u + of_r / gamma * p, of_r

    u = b / diagonal
    start = (jnp.zeros_like(b), b, u, vdot(b, u))
    x, *_ = jax.lax.fori_loop(0, iterations, step, start)
    return plan.with_ghosts(x), iterations
