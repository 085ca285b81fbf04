"""Slabs that are divided along another axis, and transforms: ours, by hand, and mpi4py-fft.

mpi4py-fft takes part where it is installed, which needs FFTW (`libfftw3-dev` in Debian):

    .envs/uv/bin/uv pip install --python .envs/mpich/bin/python mpi4py-fft
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from unstructured import donated_loop
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

try:
    import mpi4py_fft
except ImportError:
    mpi4py_fft = None

#: The points along each axis of a cube, and the most of them that are transformed, too.
POINTS = (32, 64, 128, 256, 512)
TRANSFORMED = 256
#: Size of each rank's part of an array that grows with the number of ranks.
OWN = (64, 128, 128)

Way = Callable[[jax.Array], jax.Array]


class Pair(NamedTuple):
    """A function, and its inverse."""

    there: Way
    back: Way


def redistribution(effort: Effort) -> Samples:
    """Complex numbers from slabs along one axis to slabs along another one, and back."""
    jax.config.update("jax_enable_x64", True)
    samples = weak_scaling(effort)
    for points in POINTS if SIZE in (2, 4) else ():
        if points**3 // SIZE > 32 * effort.largest:
            continue
        rounds = effort.rounds if points < TRANSFORMED else effort.loop_rounds + 2
        shape, length = (points,) * 3, max(2, min(50, 2**25 // points**3))
        moves, transforms = ways_of(shape)
        slab = slab_of(shape)
        seconds_by_case = take_turns(move_cases(moves, slab, length), effort, rounds)
        if points <= TRANSFORMED:
            cases = transform_cases(transforms, slab, length)
            seconds_by_case |= take_turns(cases, effort, rounds)
        for case, seconds in seconds_by_case.items():
            steps = length if case.endswith("loop") else 1
            samples[f"{points}, {case}"] = [s / steps for s in seconds]
    return samples


def weak_scaling(effort: Effort) -> Samples:
    """The redistribution of 16 MiB of each rank, and copies of as much."""
    shape = (OWN[0] * SIZE, *OWN[1:])
    slab, length = slab_of(shape), 10
    moves, _ = ways_of(shape)
    if "layout" not in moves:
        return {}
    copies = [np.empty_like(slab), np.empty_like(slab)]

    def copy_there_and_back() -> None:
        np.copyto(copies[0], slab)
        np.copyto(copies[1], copies[0])

    cases = {
        "weak, layout": looped(moves["layout"], jnp.asarray(slab), length),
        "weak, copy": copy_there_and_back,
    }
    samples = take_turns(cases, effort)
    samples["weak, layout"] = [s / length for s in samples["weak, layout"]]
    return samples


def slab_of(shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(RANK)
    rows = shape[0] // SIZE
    return generator.normal(size=(rows, *shape[1:], 2)).view(complex)[..., 0]


def move_cases(pairs: dict[str, Pair], slab: np.ndarray, length: int) -> dict[str, Thunk]:
    x = jnp.asarray(slab)
    expected = np.asarray(jax.jit(pairs["by hand"].there)(x))
    cases: dict[str, Thunk] = {}
    for name, pair in pairs.items():
        moved = jax.jit(pair.there)(x)
        np.testing.assert_array_equal(moved, expected, err_msg=name)
        np.testing.assert_array_equal(jax.jit(pair.back)(moved), slab, err_msg=name)
        cases |= cases_of(f"move, {name}", pair, x, length)
    if mpi4py_fft is not None:
        transfer = transfer_of((len(slab) * SIZE, *slab.shape[1:]))
        columns, before = np.empty(transfer.subshapeB, complex), slab[0].copy()

        def there_and_back() -> None:
            transfer.forward(slab, columns)
            transfer.backward(columns, slab)

        there_and_back()
        np.testing.assert_array_equal(columns, expected, err_msg="mpi4py-fft")
        np.testing.assert_array_equal(slab[0], before, err_msg="mpi4py-fft")
        cases["move, mpi4py-fft"] = there_and_back
    return cases


def transform_cases(
    pairs: dict[str, Pair], slab: np.ndarray, length: int
) -> dict[str, Thunk]:
    x = jnp.asarray(slab)
    expected = np.asarray(jax.jit(pairs["by hand"].there)(x))
    cases: dict[str, Thunk] = {}
    for name, pair in pairs.items():
        assert_close(jax.jit(pair.there)(x), expected, name)
        cases |= cases_of(f"transform, {name}", pair, x, length)
    if mpi4py_fft is not None:
        shape = (len(slab) * SIZE, *slab.shape[1:])
        transform = mpi4py_fft.PFFT(WORLD, shape, axes=(0, 1, 2), dtype=complex, slab=True)
        points = mpi4py_fft.newDistArray(transform, forward_output=False)
        modes = mpi4py_fft.newDistArray(transform, forward_output=True)

        def there_and_back() -> None:
            transform.forward(points, modes, normalize=False)
            transform.backward(modes, points, normalize=True)

        points[...] = slab
        there_and_back()
        assert_close(modes, expected, "mpi4py-fft")
        cases["transform, mpi4py-fft"] = there_and_back
    return cases


def cases_of(name: str, pair: Pair, x: jax.Array, length: int) -> dict[str, Thunk]:
    there, back = map(jax.jit, pair)
    return {
        f"{name}, calls": awaited(lambda x: back(there(x)), x),
        f"{name}, loop": looped(pair, x, length),
    }


def looped(pair: Pair, x: jax.Array, length: int) -> Thunk:
    """There and back in a loop, which keeps its memory."""
    return donated_loop(lambda x: pair.back(pair.there(x)), jnp.array(x), length)


def assert_close(result: Any, expected: np.ndarray, way: str) -> None:
    tolerance = 1e-13 * np.sqrt(expected.size) * np.abs(expected).max()
    array = np.asarray(result)
    np.testing.assert_allclose(array, expected, rtol=0, atol=tolerance, err_msg=way)


def ways_of(shape: tuple[int, ...]) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """The ways to move, and to transform, of a compiled program."""
    mpi = import_mpi()
    comm = WORLD.Clone()

    def to_columns(x: jax.Array) -> jax.Array:
        blocks = x.reshape(x.shape[0], SIZE, x.shape[1] // SIZE, -1).swapaxes(0, 1)
        return mpi.alltoall(blocks, comm=comm).reshape(shape[0], -1, shape[2])

    def to_rows(x: jax.Array) -> jax.Array:
        blocks = mpi.alltoall(x.reshape(SIZE, -1, *x.shape[1:]), comm=comm)
        return blocks.swapaxes(0, 1).reshape(-1, *shape[1:])

    def to_modes(x: jax.Array) -> jax.Array:
        return jnp.fft.fft(to_columns(jnp.fft.fftn(x, axes=(1, 2))), axis=0)

    def to_points(x: jax.Array) -> jax.Array:
        return jnp.fft.ifftn(to_rows(jnp.fft.ifft(x, axis=0)), axes=(1, 2))

    moves = {"by hand": Pair(to_columns, to_rows)}
    transforms = {"by hand": Pair(to_modes, to_points)}
    if hasattr(mpi, "exchange"):  # the original has none
        from mpi4jax import fft
        from mpi4jax.pencil import Layout

        rows = Layout(comm.Create_cart([SIZE], [True]), shape, [0])
        columns = rows.with_axes([1])
        moves["layout"] = Pair(
            lambda x: rows.redistribute(x, to=columns),
            lambda x: columns.redistribute(x, to=rows),
        )
        plan = fft.Plan(rows)
        transforms["plan"] = Pair(plan.forward, plan.backward)
    return moves, transforms


def transfer_of(shape: tuple[int, ...]) -> Any:
    """The redistribution of mpi4py-fft, by MPI_Alltoallw."""
    subcomm = mpi4py_fft.pencil.Subcomm(WORLD, [0, 1, 1])
    pencil = mpi4py_fft.pencil.Pencil(subcomm, shape, 1)
    return pencil.transfer(pencil.pencil(0), np.dtype(complex))
