"""Computations beside messages: one after the other, and with `mpi4jax.overlap`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from workloads import (
    LEFT,
    RANK,
    RIGHT,
    SIZE,
    WORLD,
    Effort,
    Thunk,
    import_mpi,
    loop_length,
    loop_over,
    take_turns,
)

#: Seconds by which the partner is late, and of the computation meanwhile.
LATE = 0.05
MESSAGES = (8, 1 << 16, 1 << 20, 1 << 24)
#: Durations of a computation, relative to the message beside it.
LENGTHS = (1, 4)
#: Number of cells of a process along each axis, for the heat equation.
CELLS = 64
#: Numbers of cells of all processes along and across the channel, for the shallow water.
CHANNEL = 480, 240

if TYPE_CHECKING:
    from mpi4jax.halo import Plan

Body = Callable[[jax.Array], jax.Array]
Samples = dict[str, list[float]]


def overlap(effort: Effort) -> Samples:
    """A late partner, messages of several sizes, and the ghost cells of grids."""
    assert SIZE == 2
    jax.config.update("jax_enable_x64", True)
    # Several cases of several steps take turns.
    effort = effort._replace(loop_time=effort.loop_time / 20)
    return {
        **late_partner(effort),
        **messages(effort),
        **heat(effort),
        **shallow_water(effort),
    }


def compute(x: jax.Array, rounds: int) -> jax.Array:
    """A computation that takes time for its rounds, and no memory."""
    return jax.lax.fori_loop(0, rounds, lambda _, x: jnp.sin(x) * 1.01, x)


def numbers() -> jax.Array:
    return jnp.linspace(0.5, 1, 128, dtype=jnp.float32)


def rounds_in(seconds: float, effort: Effort, *, on_all: bool = True) -> int:
    """Number of rounds of `compute` for a duration, on all processes or on the first."""
    rounds = 2000
    call = functools.partial(jax.jit(compute, static_argnums=1), numbers(), rounds)
    taken = take_turns({"": await_on(call, on_all=on_all)}, effort)[""]
    return max(1, round(rounds * seconds / median(taken)))


def await_on(call: Callable[[], Any], *, on_all: bool) -> Thunk:
    if on_all or RANK == 0:
        return lambda: jax.block_until_ready(call())
    return lambda: None


def late_partner(effort: Effort) -> Samples:
    """A message that comes late, for a process that has something else to do."""
    mpi, comm = import_mpi(), WORLD.Clone()
    from mpi4jax import overlap

    x = numbers()
    rounds = rounds_in(LATE, effort, on_all=False)

    def receive() -> jax.Array:
        return mpi.recv(jnp.zeros(8), 1, comm=comm)

    def work(x: jax.Array) -> jax.Array:
        return compute(x, rounds)

    def answered(program: Callable[[jax.Array], Any]) -> Thunk:
        def answer() -> None:
            time.sleep(LATE)
            comm.Send(np.arange(8.0), 0)

        if RANK == 1:
            return answer
        return await_on(functools.partial(jax.jit(program), x), on_all=False)

    programs = {
        "plain": lambda x: (receive(), work(x)),
        "overlap": lambda x: overlap(receive, during=lambda: work(x)),
    }
    cases = {name: answered(program) for name, program in programs.items()}
    cases["computation"] = await_on(functools.partial(jax.jit(work), x), on_all=False)
    return {f"late, {name}": s for name, s in take_turns(cases, effort).items()}


def messages(effort: Effort) -> Samples:
    """Messages in a loop, per step, each beside a computation."""
    mpi, comm = import_mpi(), WORLD.Clone()
    from mpi4jax import overlap

    samples: Samples = {}

    def moved(y: jax.Array) -> jax.Array:
        return mpi.sendrecv(y, y, LEFT, RIGHT, comm=comm)

    for size in MESSAGES:
        if size > effort.largest:
            continue
        start = jnp.ones(size // 8), numbers()
        length = loop_length(loop_over(moved, start[0], 1), effort)
        call = loop_over(moved, start[0], length)
        step = median(take_turns({"": call}, effort)[""]) / length
        cases: dict[str, Thunk] = {f"{size}, message": call}
        for factor in LENGTHS:
            work = functools.partial(compute, rounds=rounds_in(factor * step, effort))

            def computed(state, work=work):
                return state[0], work(state[1])

            def plain(state, work=work):
                return moved(state[0]), work(state[1])

            def overlapped(state, work=work):
                y, x = state
                return overlap(lambda: moved(y), during=lambda: work(x))

            bodies = {"computation": computed, "plain": plain, "overlap": overlapped}
            for name, body in bodies.items():
                cases[f"{size}, {factor}, {name}"] = loop_over(body, start, length)
        for case, seconds in take_turns(cases, effort).items():
            samples[case] = [s / length for s in seconds]
    return samples


# Steps of solvers.


def heated(u: jax.Array) -> jax.Array:
    """The new values of all cells but the outermost ones, by a stencil of seven points."""
    inner = u[1:-1, 1:-1, 1:-1]
    around = (
        (u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1])
        + (u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1])
        + (u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2])
    )
    return inner + 0.1 * (around - 6 * inner)


def heat(effort: Effort) -> Samples:
    """Steps of the heat equation on a periodic grid, per step."""
    from mpi4jax.halo import Plan

    comm = WORLD.Create_cart(MPI.Compute_dims(SIZE, 3), (True,) * 3)
    plan = Plan(comm, corners=False)

    def step(u: jax.Array) -> jax.Array:
        # XLA computes this much faster than an update of `u`.
        return jnp.pad(heated(u), 1)

    def interior(u: jax.Array) -> jax.Array:
        """The new field, where it takes no ghost cells."""
        return jnp.pad(heated(u[1:-1, 1:-1, 1:-1]), 2)

    def with_faces(u: jax.Array, new: jax.Array) -> jax.Array:
        """The new field, where it takes ghost cells as well."""
        for axis in range(3):
            for layers, cells in (
                (slice(0, 3), slice(1, 2)),
                (slice(-3, None), slice(-2, -1)),
            ):
                at = [slice(1, -1)] * 3
                at[axis] = cells
                new = new.at[tuple(at)].set(heated(u[(slice(None),) * axis + (layers,)]))
        return new

    random = np.random.default_rng(RANK)
    u = jnp.asarray(random.random((CELLS + 2,) * 3))
    return steps("heat", plan, step, interior, with_faces, u, effort)


def shallow_water(effort: Effort) -> Samples:
    """Steps of Euler's scheme with the equations of the example, per step."""
    from shallow_water import Grid, initial_state, tendencies, with_walls

    grid = Grid(*CHANNEL)
    step_size = float(grid.dt)  # a NumPy number would make float64 of float32

    def advanced(fields: jax.Array, change: list[jax.Array]) -> jax.Array:
        change = step_size * jnp.stack(change)
        return with_walls(grid, fields.at[:, 1:-1, 1:-1].add(change))

    def step(fields: jax.Array) -> jax.Array:
        return advanced(fields, tendencies(grid, fields))

    def interior(fields: jax.Array) -> list[jax.Array]:
        """The change of cells that takes no ghost cells."""
        # Stacked in here, XLA would compute it three times more slowly.
        change = tendencies(grid, fields[:, 1:-1, 1:-1], 1)
        return [jnp.pad(tendency, 1) for tendency in change]

    def with_edges(fields: jax.Array, change: list[jax.Array]) -> jax.Array:
        """The new fields, where they take ghost cells as well."""
        last = grid.plan.local_shape[0] - 1
        for row in 0, last:
            bands = tendencies(grid, fields[:, row : row + 3], row)
            change = [x.at[row].set(y[0]) for x, y in zip(change, bands, strict=True)]
        for column in 0, grid.plan.local_shape[1] - 1:
            bands = tendencies(grid, fields[:, :, column : column + 3])
            pairs = zip(change, bands, strict=True)
            change = [x.at[:, column].set(y[:, 0]) for x, y in pairs]
        return advanced(fields, change)

    fields = initial_state(grid)
    return steps("shallow water", grid.plan, step, interior, with_edges, fields, effort)


def steps(
    name: str,
    plan: Plan,
    step: Body,
    interior: Callable[[jax.Array], Any],
    with_edges: Callable[[jax.Array, Any], jax.Array],
    start: jax.Array,
    effort: Effort,
) -> Samples:
    """A step as it is, and in two parts, of which the first takes no ghost cells."""

    def in_parts(fields: jax.Array) -> jax.Array:
        fields = plan.exchange(fields)
        # XLA does not make one kernel of both with overlap, either.
        inner = jax.lax.optimization_barrier(interior(fields))
        return with_edges(fields, inner)

    bodies: dict[str, Body] = {
        "message": plan.exchange,
        "computation": step,
        "plain": lambda fields: step(plan.exchange(fields)),
        "in parts": in_parts,
        "overlap": lambda fields: with_edges(*plan.exchange(fields, during=interior)),
    }

    def after_steps(body: Body) -> jax.Array:
        return jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: body(x), x))(start)

    expected = after_steps(bodies["plain"])
    for body in ("in parts", "overlap"):
        np.testing.assert_allclose(
            after_steps(bodies[body]), expected, rtol=1e-6, atol=1e-5
        )
    length = loop_length(loop_over(bodies["plain"], start, 1), effort)
    cases = {case: loop_over(body, start, length) for case, body in bodies.items()}
    return {
        f"{name}, {case}": [s / length for s in seconds]
        for case, seconds in take_turns(cases, effort).items()
    }
