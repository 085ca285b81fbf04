"""Rows to every process: as many as there are, or blocks that are padded to a size.

JAX's `all_to_all` over MPI or gloo sends the padded blocks, too. All cases of a size take
turns in the same processes.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sharded import initialize, loop_length_of, over_ranks, repeat
from workloads import (
    RANK,
    SIZE,
    WORLD,
    Effort,
    Samples,
    Thunk,
    awaited,
    import_mpi,
    take_turns,
)

#: Count of the numbers in a particle, of 4 bytes each.
COLUMNS = 8
#: Numbers of rows in the block that a process can send to another one.
BLOCKS = (16, 256, 4096)
#: Filled parts of a block, in percent.
FILLED = (1, 10, 50, 100)


def migration(effort: Effort) -> Samples:
    """Rows to every process, by run-time counts, in padded blocks, and as a migration."""
    sharding = initialize()
    mpi, comm = import_mpi(), WORLD.Clone()

    def padded(x: Any) -> Any:
        return mpi.alltoall(x, comm=comm)

    def all_to_all(x: Any) -> Any:
        return jax.lax.all_to_all(x, "ranks", 0, 0)

    def ragged(state: Any) -> Any:
        x, counts = state
        return mpi.alltoallv(x, counts, capacity=len(x), comm=comm)

    samples: Samples = {}
    for block in BLOCKS:
        rows = np.random.default_rng(RANK).normal(size=(SIZE * block, COLUMNS))
        rows = rows.astype(np.float32)
        length = loop_length_of(rows.nbytes, effort)

        def timed(step: Any, state: Any, length: int = length) -> Thunk:
            loop = jax.jit(functools.partial(repeat(step), length=length))
            return lambda: jax.block_until_ready(loop(state))

        blocks = rows.reshape(SIZE, block, COLUMNS)
        whole = jax.make_array_from_process_local_data(sharding, blocks)
        in_shard_map = functools.partial(repeat(all_to_all), length=length)
        cases = {
            f"padded, {block}": timed(padded, blocks),
            f"all_to_all, {block}": awaited(over_ranks(in_shard_map, sharding), whole),
        }
        for percent in FILLED:
            count = max(1, block * percent // 100)
            counts = jnp.full(SIZE, count)
            cases[f"ragged, {block}, {percent}"] = timed(ragged, (rows, counts))
            step = functools.partial(migrated, count, comm)
            cases[f"migrate, {block}, {percent}"] = timed(
                step, (rows, jnp.ones(len(rows), bool))
            )
        taken = take_turns(cases, effort)
        samples |= {name: [s / length for s in seconds] for name, seconds in taken.items()}
    jax.distributed.shutdown()
    return samples


def migrated(count: int, comm: Any, state: Any) -> Any:
    """Migrate `count` of the first slots to each process. The other slots stay."""
    from mpi4jax.unstructured import migrate

    x, mask = state
    target = jnp.arange(len(mask)) // count
    destination = jnp.where(target < SIZE, target, RANK)
    return migrate(x, destination, mask=mask, comm=comm)[:2]
