"""Random fields of which each process has a part, with the memory that they need."""

from __future__ import annotations

import jax
import numpy as np
from sharded import memory_of
from workloads import SIZE, WORLD, Effort, Samples, Thunk, awaited, import_mpi, take_turns

#: Points along each axis of a cube.
POINTS = (64, 128, 256, 320)


def fields(effort: Effort) -> Samples:
    """Normal numbers: a part of the whole, or the part alone."""
    import_mpi()
    from mpi4jax.pencil import Layout

    comm, samples = WORLD.Create_cart([SIZE]), {}
    for points in POINTS:
        if points**3 // SIZE > 16 * effort.largest:
            continue
        shape = (points,) * 3
        layout = Layout(comm, shape, [0])

        def whole(key, layout=layout, shape=shape):
            return layout.scatter(jax.random.normal(key, shape))

        def part(key, layout=layout, shape=shape):
            return layout.scatter(lambda: jax.random.normal(key, shape))

        key = jax.random.key(0)
        np.testing.assert_allclose(jax.jit(part)(key), jax.jit(whole)(key), atol=1e-5)
        cases: dict[str, Thunk] = {
            f"{points}, whole": awaited(jax.jit(whole), key),
            f"{points}, part": awaited(jax.jit(part), key),
        }
        samples |= take_turns(cases, effort, effort.loop_rounds)
        samples |= memory_of(cases)
    return samples
