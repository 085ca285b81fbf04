"""Matrix products on XLA's threads, and a sum over all ranks after each.

A rank that polls while it waits takes the cores from threads that compute.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import sharded
from mpi4py import MPI
from workloads import RANK, SIZE, WORLD, Effort, Thunk, import_mpi, take_turns

#: Numbers of rows of the matrices, of elements of the sum, and of steps of a loop.
ROWS, ELEMENTS, STEPS = 600, 1024, 10
#: The steps in which a rank computes: all steps, or in turn with the other ranks.
TURNS: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda step, rank: step >= 0,
    "one": lambda step, rank: step % SIZE == rank,
}


def unbound(effort: Effort) -> dict[str, list[float]]:
    """The ranks may use all cores, as after `mpiexec` without options."""
    return _products_and_sums(effort, bind=False)


def bound(effort: Effort) -> dict[str, list[float]]:
    """Each rank has one core, which it shares if there are more ranks than cores."""
    return _products_and_sums(effort, bind=True)


def _products_and_sums(effort: Effort, *, bind: bool) -> dict[str, list[float]]:
    use_cores(bind)
    os.environ["XLA_FLAGS"] = ""  # as many threads as cores
    matrix, x = np.full((ROWS, ROWS), 1e-3, np.float32), np.ones(ELEMENTS, np.float32)
    cases: dict[str, Thunk] = {}

    is_gloo = os.environ.get("COLLECTIVES") == "gloo"
    has_psum = is_gloo or importlib.util.find_spec("mpi4jax.distributed") is not None
    if has_psum:
        blocks = sharded.initialize()
        state = [
            jax.make_array_from_process_local_data(blocks, array) for array in (matrix, x)
        ]
        for who in TURNS:
            loop = functools.partial(
                _loop,
                TURNS[who],
                lambda: jax.lax.axis_index("ranks"),
                lambda x: jax.lax.psum(x, "ranks"),
            )
            loop = jax.shard_map(
                loop,
                mesh=blocks.mesh,
                in_specs=blocks.spec,
                out_specs=blocks.spec,
                check_vma=False,
            )
            cases[f"psum, {who}"] = _awaited(jax.jit(loop), *state)
    if not is_gloo:
        comm = WORLD.Clone()
        allreduce = functools.partial(import_mpi().allreduce, op=MPI.SUM, comm=comm)
        for who in TURNS:
            loop = functools.partial(_loop, TURNS[who], lambda: RANK, allreduce)
            cases[f"allreduce, {who}"] = _awaited(jax.jit(loop), matrix, x)
            by_hand = functools.partial(_loop_by_hand, TURNS[who], comm)
            cases[f"mpi4py, {who}"] = _awaited(by_hand, matrix, x)
    samples = take_turns(cases, effort, effort.loop_rounds)
    if has_psum:
        jax.distributed.shutdown()
    return {case: [s / STEPS for s in seconds] for case, seconds in samples.items()}


def use_cores(bind: bool) -> None:
    """Bind this process to one core, or to all, independent of the launcher."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    if bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[RANK % len(cores)]})


def _awaited(loop: Callable[..., Any], *state: Any) -> Thunk:
    return lambda: jax.block_until_ready(loop(*state))


def _product(matrix: Any) -> Any:
    return (matrix @ matrix / 10 + 1e-3) @ matrix


def _loop(
    computes: Callable[[Any, Any], Any],
    rank: Callable[[], Any],
    sum_over_ranks: Callable[[Any], Any],
    matrix: Any,
    x: Any,
) -> Any:
    def step(n: Any, state: Any) -> Any:
        matrix, x = state
        is_turn = computes(n, rank())
        matrix = jax.lax.cond(is_turn, _product, lambda matrix: matrix, matrix)
        x = sum_over_ranks(x + matrix[0, 0]) / SIZE
        return matrix + x[0] * 1e-9, x

    return jax.lax.fori_loop(0, STEPS, step, (matrix, x))


def _loop_by_hand(
    computes: Callable[[Any, Any], Any], comm: MPI.Intracomm, matrix: Any, x: Any
) -> Any:
    product = jax.jit(_product)
    for n in range(STEPS):
        if computes(n, RANK):
            matrix = product(matrix)
        x = x + np.asarray(matrix)[0, 0]
        comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
        x = x / np.float32(SIZE)
    return matrix, x
