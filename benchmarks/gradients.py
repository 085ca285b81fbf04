"""Gradients of a long run of a divided field, with the memory that its states need."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from sharded import memory_of
from workloads import SIZE, WORLD, Effort, Samples, Thunk, awaited, take_turns

#: Cells along each axis of the whole field.
CELLS = 256
#: Numbers of states that diffrax keeps.
CHECKPOINTS = (10, 30, 100, 300)
#: The parameter of malloc.h: the size from which memory is mapped, and unmapped when free.
M_MMAP_THRESHOLD = -3

#: A function of a field, which gives the field after some steps.
Run = Callable[[Any], Any]


def gradients(effort: Effort) -> Samples:
    """The gradient of a run by its first state, with some states kept or all.

    The name of a case ends with the number of states that it keeps.
    """
    import diffrax

    from mpi4jax.halo import Plan

    # Memory that malloc kept would be no growth in the next call: all states are mapped.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    dims = MPI.Compute_dims(SIZE, 2)
    plan = Plan(WORLD.Create_cart(dims, (True, True)), corners=False)
    length = math.isqrt(10 * effort.loop)
    steps = length**2

    def rate(_time: Any, u: Any, _args: Any) -> Any:
        v = plan.with_ghosts(u)
        sums = (v[:-2, 1:-1] + v[2:, 1:-1]) + (v[1:-1, :-2] + v[1:-1, 2:])
        return 0.1 * (sums - 4 * u) + 1e-4 * (u - u**3)

    def step(u: Any) -> Any:
        return u + rate(None, u, None)

    def by_diffrax(u: Any, checkpoints: int) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(rate),
            diffrax.Euler(),
            0.0,
            float(steps),
            1.0,
            u,
            stepsize_controller=diffrax.ConstantStepSize(),
            adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints),
            max_steps=steps,
        )
        return solution.ys[0]

    run, part = scanned(step, steps), scanned(step, length)
    ways: dict[str, Run] = {
        f"diffrax, {checkpoints}": functools.partial(by_diffrax, checkpoints=checkpoints)
        for checkpoints in CHECKPOINTS
        if checkpoints <= effort.loop
    }
    ways |= {
        # The states before each part, and those of one part.
        f"custom_vjp, {2 * length}": scanned(repeated(part), length),
        # JAX keeps the fields with ghost cells of all steps, as results of messages.
        f"jax.checkpoint, {steps}": scanned(jax.checkpoint(part), length),
        f"scan, {steps}": run,
    }

    shape = [cells // count for cells, count in zip((CELLS, CELLS), dims, strict=True)]
    generator = np.random.default_rng(WORLD.Get_rank())
    u = jnp.asarray(generator.uniform(-1, 1, shape), jnp.float32)
    cases: dict[str, Thunk] = {"run": awaited(jax.jit(run), u)}
    for name, way in ways.items():

        def loss(u: Any, way: Run = way) -> Any:
            return jnp.sum(way(u) ** 2)

        cases[name] = awaited(jax.jit(jax.grad(loss)), u)
    samples = take_turns(cases, effort, min(3, effort.loop_rounds))
    results: dict[str, Any] = {}

    def keep(name: str) -> None:
        results[name] = cases[name]()

    samples |= memory_of({name: functools.partial(keep, name) for name in cases})
    del results["run"]
    first, *others = results
    expected = np.asarray(results[first])
    scale = 1e-4 * np.abs(expected).max()
    for name in others:
        np.testing.assert_allclose(
            results[name], expected, rtol=0, atol=scale, err_msg=name
        )
    samples["steps"] = [steps]
    return samples


def repeated(run: Run) -> Run:
    """The run, which its derivative runs again, messages and all."""
    again = jax.custom_vjp(run)
    again.defvjp(lambda u: (run(u), u), lambda u, cotangent: jax.vjp(run, u)[1](cotangent))
    return again


def scanned(step: Run, length: int) -> Run:
    return lambda u: jax.lax.scan(lambda u, _: (step(u), None), u, length=length)[0]
