"""Checkpoints of a divided array: ours, the same bytes without a format, and orbax. Output.

Orbax and zarr-python take part where they are installed:

    .envs/uv/bin/uv pip install --python .envs/mpich/bin/python orbax-checkpoint zarr
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sharded import initialize
from workloads import RANK, SIZE, WORLD, Effort, Samples, Thunk, take_turns

try:
    import orbax.checkpoint as orbax
except ImportError:
    orbax = None
try:
    import zarr
except ImportError:
    zarr = None

#: Bytes of a row of the array, which has as many as there is room for.
ROW = 1 << 16
#: The grid of the solver, and how many steps it takes.
CELLS, STEPS = (960, 480), 100
#: In memory, and on a disk.
PLACES = {"tmpfs": "/dev/shm", "disk": tempfile.gettempdir()}


def checkpoints(effort: Effort) -> Samples:
    """An array of float32, of which each process has a part, to files and back."""
    sharding = initialize()
    samples: Samples = {}
    for place, parent in PLACES.items():
        with shared_folder(parent) as folder:
            cases = cases_of_output(folder)
            if SIZE > 1:
                cases |= cases_of(folder, sharding, 64 * effort.largest // ROW)
            seconds_by_case = take_turns(cases, effort, effort.loop_rounds)
            seconds_by_case["compressed size"] = [compressed_size(folder)]
            samples |= {f"{place}, {case}": s for case, s in seconds_by_case.items()}
    return samples


@contextmanager
def shared_folder(parent: str) -> Iterator[Path]:
    made = tempfile.mkdtemp(dir=parent) if RANK == 0 else None
    folder = Path(WORLD.bcast(made))
    try:
        yield folder
    finally:
        WORLD.Barrier()
        if RANK == 0:
            shutil.rmtree(folder)


def cases_of(
    folder: Path, sharding: jax.sharding.NamedSharding, rows: int
) -> dict[str, Thunk]:
    from mpi4jax import files
    from mpi4jax.halo import Plan

    shape = (rows, ROW // 4)
    plan = Plan(WORLD.Create_cart([SIZE], [False]), 0, axes=[0], shape=shape[:1])
    generator = np.random.default_rng(RANK)
    own = generator.random((rows // SIZE, *shape[1:]), np.float32)
    x = jnp.asarray(own)
    path, bare, whole = folder / "ours", folder / f"part {RANK}", folder / "whole.npy"

    def gather() -> None:
        field = plan.gather(x, root=0)
        if field is not None:
            np.save(whole, field)
            sync(whole)
        WORLD.Barrier()

    def scatter() -> jax.Array:
        field = np.load(whole) if RANK == 0 else jax.ShapeDtypeStruct(shape, x.dtype)
        return plan.scatter(field, root=0)

    def write() -> None:
        own.tofile(bare)
        sync(bare)

    def read() -> jax.Array:
        return jnp.asarray(np.fromfile(bare, x.dtype).reshape(own.shape))

    cases = pair(
        "ours",
        lambda: files.save(path, x, plan, overwrite=True),
        lambda: files.load(path, plan),
        own,
    )
    cases |= pair("bare", write, read, own)
    cases |= pair("one process", gather, scatter, own)
    if orbax is not None:
        cases |= cases_of_orbax(folder, sharding, own)
    return cases


def cases_of_orbax(
    folder: Path, sharding: jax.sharding.NamedSharding, own: np.ndarray
) -> dict[str, Thunk]:
    """Its checkpoints of a sharded array, and ours."""
    from mpi4jax import files

    x = jax.make_array_from_process_local_data(sharding, own)
    abstract = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    checkpointer = orbax.Checkpointer(orbax.StandardCheckpointHandler())
    path, theirs = folder / "ours, sharded", folder / "orbax"
    cases = pair(
        "ours, sharded",
        lambda: files.save(path, x, sharding, overwrite=True),
        lambda: files.load(path, sharding),
        own,
    )
    return cases | pair(
        "orbax",
        lambda: checkpointer.save(
            theirs, args=orbax.args.StandardSave({"x": x}), force=True
        ),
        lambda: checkpointer.restore(
            theirs, args=orbax.args.StandardRestore({"x": abstract})
        )["x"],
        own,
    )


def cases_of_output(folder: Path) -> dict[str, Thunk]:
    """Steps of the shallow-water solver, alone, and with output of each tenth one."""
    from shallow_water import Grid, initial_state, make_solver

    from mpi4jax import files

    grid = Grid(*CELLS)
    fields, solve = initial_state(grid), make_solver(grid)
    nothing, numbers = (
        jnp.zeros((3, *grid.plan.local_shape), fields.dtype),
        itertools.count(),
    )

    def run(append: Callable[[dict[str, jax.Array], int], None]) -> None:
        state = fields, nothing, nothing
        for step in range(0, STEPS, 10):
            state = jax.block_until_ready(solve(state, step, step + 10))
            append(dict(zip(("eta", "u", "v"), state[0], strict=True)), step)

    def run_with_output(compression: str | None = None) -> None:
        path = folder / f"run {next(numbers)} {compression}"
        with files.Output(path, grid.plan, compression=compression) as output:
            run(output.append)

    def run_with_zarr() -> None:
        """Output by zarr-python, in a thread of its own."""
        plan, arrays = grid.plan, {}
        size = plan.local_shape
        own = tuple(slice(a, a + n) for a, n in zip(plan.offset, size, strict=True))
        path = folder / f"run {next(numbers)} zarr-python"
        for name in ("eta", "u", "v") if RANK == 0 else ():
            zarr.create_array(
                path / name,
                shape=(STEPS // 10, *plan.shape),
                chunks=(1, *size),
                dtype="float32",
                compressors=None,
            )
        WORLD.Barrier()

        def write(time: int, fields: dict[str, np.ndarray]) -> None:
            for name, field in fields.items():
                if name not in arrays:
                    arrays[name] = zarr.open_array(path / name, mode="r+")
                arrays[name][(time, *own)] = field

        with ThreadPoolExecutor(1) as thread:
            written: deque[Future[None]] = deque()

            def append(fields: dict[str, jax.Array], step: int) -> None:
                if len(written) == 2:
                    written.popleft().result()
                copies = {
                    name: np.array(plan.without_ghosts(field))
                    for name, field in fields.items()
                }
                written.append(thread.submit(write, step // 10, copies))

            run(append)
            for each in written:
                each.result()

    cases = {
        "steps": lambda: run(lambda *_: None),
        "steps, output": run_with_output,
        "steps, compressed": lambda: run_with_output("lz4"),
    }
    return cases if zarr is None else {**cases, "steps, zarr-python": run_with_zarr}


def compressed_size(folder: Path) -> float:
    """The size of compressed output, as a part of that of plain output."""
    plain, compressed = (
        sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        for run in (next(folder.glob(f"run * {name}")) for name in (None, "lz4"))
    )
    return compressed / plain


def pair(
    name: str, save: Callable[[], object], load: Callable[[], jax.Array], own: np.ndarray
) -> dict[str, Thunk]:
    """Both directions, of which one gives what the other one had."""
    save()
    WORLD.Barrier()
    loaded = load()
    part = loaded.addressable_shards[0].data
    np.testing.assert_array_equal(part, own, err_msg=name)
    return {
        f"save, {name}": save,
        f"load, {name}": lambda: load().block_until_ready(),
    }


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
