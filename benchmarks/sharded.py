"""JAX's own collectives over processes, which sum over an axis of devices."""

from __future__ import annotations

import functools
import os

import jax
import numpy as np
from mpi4py import MPI
from workloads import (
    LATENCY_SIZES,
    RANK,
    SIZE,
    SIZES,
    WORLD,
    Effort,
    Thunk,
    import_mpi,
    take_turns,
)


def initialize() -> jax.sharding.NamedSharding:
    """Connect JAX's processes. Gives the sharding of arrays with a block for each."""
    if os.environ.get("COLLECTIVES") != "gloo":
        from mpi4jax import distributed

        distributed.initialize()
    else:
        port = 20000 + WORLD.bcast(os.getpid(), 0) % 20000
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", SIZE, RANK)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "ranks")
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))


def psum(effort: Effort) -> dict[str, list[float]]:
    """A sum as a program of its own and in a loop, beside a loop with `allreduce`."""
    sharding = initialize()
    mesh, spec = sharding.mesh, sharding.spec

    def summed(x):
        return jax.lax.psum(x, "ranks")

    def over_ranks(function):
        sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
        return jax.jit(sharded)

    samples = {}
    cases: dict[str, Thunk] = {}
    for size in sorted({*LATENCY_SIZES, *SIZES}):
        if size > effort.largest:
            continue
        local = np.ones(size // 4, np.float32)
        x = jax.make_array_from_process_local_data(sharding, local)
        program = over_ranks(lambda x: summed(x) + 0 * x)
        cases[f"jit, {size}"] = lambda p=program, x=x: p(x).block_until_ready()
    samples.update(take_turns(cases, effort))
    mpi, comm = import_mpi(), WORLD.Clone()
    for size in SIZES:
        if size > effort.largest:
            continue
        local = np.ones(size // 4, np.float32)
        x = jax.make_array_from_process_local_data(sharding, local)
        length = max(3, effort.loop // (1 + size // (1 << 14)))

        def loop(x, sum_over_ranks, n=length):
            # A sum is the same on all ranks, but the state of a loop may not become so.
            return jax.lax.fori_loop(0, n, lambda _, y: sum_over_ranks(y) / SIZE + 0 * y, x)

        program = over_ranks(functools.partial(loop, sum_over_ranks=summed))
        allreduce = functools.partial(mpi.allreduce, op=MPI.SUM, comm=comm)
        beside = jax.jit(functools.partial(loop, sum_over_ranks=allreduce))
        cases = {
            f"psum, {size}": lambda p=program, x=x: p(x).block_until_ready(),
            f"allreduce, {size}": lambda p=beside, x=local: p(x).block_until_ready(),
        }
        for name, seconds in take_turns(cases, effort).items():
            samples[name] = [s / length for s in seconds]
    jax.distributed.shutdown()
    return samples
