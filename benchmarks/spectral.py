"""Fourier transforms on XLA's threads, and a transposition by `sendrecv` between them.

That is how pseudo-spectral codes are written by hand. The waits are short, and between
them XLA's threads compute: a wait that gives its core away has to get it back.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from shared_cores import use_cores
from workloads import RANK, SIZE, WORLD, Effort, Thunk, awaited, import_mpi, take_turns

#: The points along each axis: messages of 2 ranks have 16 kB to 1 MB.
POINTS = (16, 32, 64, 80)
STEPS = 4


def spectral(effort: Effort) -> dict[str, list[float]]:
    """The ranks may use all cores, as after `mpiexec` without options."""
    return _steps(effort, bind=False)


def spectral_bound(effort: Effort) -> dict[str, list[float]]:
    """Each rank has one core, which it shares if there are more ranks than cores."""
    return _steps(effort, bind=True)


def _steps(effort: Effort, *, bind: bool) -> dict[str, list[float]]:
    use_cores(bind)
    os.environ["XLA_FLAGS"] = ""  # as many threads as cores
    mpi, comm = import_mpi(), WORLD.Clone()
    cases: dict[str, Thunk] = {}
    for points in POINTS:
        if points % SIZE or points**3 * 8 > effort.largest:
            continue
        field = np.ones((points // SIZE, points, points), np.complex64) * (RANK + 1)
        step = functools.partial(_step, mpi, comm)
        loop = jax.jit(lambda x, s=step: jax.lax.fori_loop(0, STEPS, lambda _, y: s(y), x))
        cases[f"{points}^3"] = awaited(loop, jnp.asarray(field))
    samples = take_turns(cases, effort, effort.loop_rounds)
    return {case: [s / STEPS for s in seconds] for case, seconds in samples.items()}


def _step(mpi: Any, comm: Any, x: jax.Array) -> jax.Array:
    """To modes, a product there, and back."""
    modes = jnp.fft.fft(_transposed(mpi, comm, jnp.fft.fft2(x)), axis=2)
    points = jnp.fft.ifft(modes * 0.999, axis=2)
    return jnp.fft.ifft2(_transposed(mpi, comm, points))


def _transposed(mpi: Any, comm: Any, x: jax.Array) -> jax.Array:
    """The array with its last axis divided, or its first one again, one by one."""
    blocks = jnp.moveaxis(x.reshape(x.shape[0], x.shape[1], SIZE, -1), 2, 0)
    received = [blocks[RANK]]
    for shift in range(1, SIZE):
        dest, source = (RANK + shift) % SIZE, (RANK - shift) % SIZE
        received.append(
            mpi.sendrecv(blocks[dest], blocks[dest], source=source, dest=dest, comm=comm)
        )
    order = [(RANK - source) % SIZE for source in range(SIZE)]
    joined = jnp.concatenate([received[n] for n in order], axis=0)
    return joined.transpose(2, 1, 0)
