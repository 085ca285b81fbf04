"""Particles that migrate in a periodic box and repel each other.

    mpiexec -n 4 python examples/particles.py

Each process has the particles in its part of the box. In a step of time,

- particles that have left the part go to the process that they belong to (`migrate`),
- copies of those near a face go to the processes on its other side, as ghosts. They are
  sent by `migrate`, too, to the neighbors, and dropped after the step;
- all are pushed by the particles and ghosts that are closer than REACH, and move on.

They begin in four vortices. The picture shows by colors in which process they began.

Every process also does all of it alone, without messages, to compare. The picture needs
matplotlib; --no-plot does without.

With --files FOLDER, checkpoints are written to FOLDER. With --restart, too, the run goes on
from the newest one, for more steps or on another number of processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import files
from mpi4jax.unstructured import migrate

SPACING = 1.0  # of the particles at the beginning
REACH = 1.2  # of the repulsion
STIFFNESS = 20.0
SPEED = 2.5  # at the edges of the vortices
DT = 0.02
SNAPSHOTS = 3
#: Of the velocities. Rounding errors grow, as the motion is chaotic.
TOLERANCE = 1e-5
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Particles(NamedTuple):
    x: jax.Array
    v: jax.Array
    number: jax.Array
    #: The process in which it began.
    origin: jax.Array


class State(NamedTuple):
    particles: Particles
    #: Which slots have a particle.
    mask: jax.Array
    #: How many particles have come from other processes.
    arrivals: jax.Array
    #: How many found no room, themselves or their copies.
    failures: jax.Array


class Box:
    """The box, and the part of it that this process has."""

    def __init__(self, comm: MPI.Intracomm, length: float, count: int) -> None:
        dims = MPI.Compute_dims(comm.Get_size(), 2)
        self.comm = comm.Create_cart(dims, periods=(True, True))
        self.length, self.dims = length, np.array(dims)
        self.widths = length / self.dims
        if min(self.widths) < REACH:
            raise ValueError(f"parts of {self.widths} are smaller than {REACH}")
        here = np.array(self.comm.coords)
        self.lower, self.upper = here * self.widths, (here + 1) * self.widths
        # To the sides and across the corners, with what to add to positions there.
        steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        self.steps = np.array(steps)
        self.ranks = np.array([self.comm.Get_cart_rank(here + step) for step in steps])
        self.shifts = -length * ((here + self.steps) // self.dims)
        density = count / length**2
        self.slots = room_for(density * np.prod(self.widths), count)
        self.ghost_slots = room_for(
            density * (np.prod(self.widths + 2 * REACH) - np.prod(self.widths)), 8 * count
        )

    def owner(self, x: jax.Array) -> jax.Array:
        """The rank of the process that has a position."""
        coordinates = jnp.clip((x / self.widths).astype(int), 0, self.dims - 1)
        return coordinates[:, 0] * self.dims[1] + coordinates[:, 1]

    def ghosts(self, state: State) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The positions of particles near this part, their mask, and failures."""
        x = state.particles.x
        distances = jnp.stack([x - self.lower, jnp.full_like(x, -jnp.inf), self.upper - x])
        is_near = distances < REACH
        # For each direction, the particles that are near in both coordinates.
        i, j = self.steps.T + 1
        is_copied = is_near[i, :, 0] & is_near[j, :, 1] & state.mask
        (copies,) = jnp.nonzero(is_copied.ravel(), size=self.ghost_slots, fill_value=-1)
        direction, slot = jnp.divmod(copies, len(x))
        sent = migrate(
            x[slot] + jnp.asarray(self.shifts)[direction],
            jnp.asarray(self.ranks)[direction],
            mask=copies >= 0,
            neighbors=self.ranks,
            comm=self.comm,
        )
        failures = jnp.maximum(is_copied.sum() - self.ghost_slots, 0) + sent.deferred
        return sent.particles, sent.mask, failures

    def step(self, _: int, state: State) -> State:
        destination = self.owner(state.particles.x)
        particles, mask, deferred, _ = migrate(
            state.particles, destination, mask=state.mask, comm=self.comm
        )
        stayed = jnp.sum(state.mask & (destination == self.comm.rank))
        arrivals = state.arrivals + mask.sum() - stayed
        # In this order, the forces have the same bits after a restart.
        order = jnp.lexsort((particles.number, ~mask))
        particles = jax.tree.map(lambda x: x[order], particles)
        state = State(particles, mask, arrivals, state.failures + deferred)
        ghosts, is_ghost, failures = self.ghosts(state)
        others = jnp.concatenate([particles.x, ghosts])
        is_other = jnp.concatenate([mask, is_ghost])
        v = particles.v + DT * forces(particles.x, others, is_other)
        x = (particles.x + DT * v) % self.length
        return state._replace(
            particles=particles._replace(x=x, v=v), failures=state.failures + failures
        )

    def begin(self, own: Particles) -> State:
        """The particles of this process in its first slots."""
        count = len(own.x)

        def fill_up(x: np.ndarray) -> jax.Array:
            padding = [(0, self.slots - count), *[(0, 0)] * (x.ndim - 1)]
            return jnp.asarray(np.pad(x, padding))

        mask = jnp.arange(self.slots) < count
        none = jnp.zeros((), int)
        return State(jax.tree.map(fill_up, own), mask, none, none)

    def run(
        self,
        particles: Particles,
        steps: int,
        folder: Path | None = None,
        restart: bool = False,
    ) -> tuple[list[tuple[int, Particles]], State]:
        """All particles after some steps, in the order of their numbers, and the end."""

        @jax.jit
        def advance(state: State, steps: int) -> State:
            return jax.lax.fori_loop(0, steps, self.step, state)

        owner = np.asarray(self.owner(particles.x))
        own = jax.tree.map(
            lambda x: x[owner == self.comm.rank], particles._replace(origin=owner)
        )
        done, part = 0, -(-steps // (SNAPSHOTS - 1))
        if folder and restart and (newest := files.latest(folder)):
            # An even share of the rows, which migrate in the first step.
            loaded = files.load(newest, {"step": None, "particles": files.Rows()})
            done, own = loaded["step"], Particles(**loaded["particles"])
        state = self.begin(own)
        snapshots = [(done, self.collect(state))]
        while done < steps:
            count = min(part, steps - done)
            done, state = done + count, advance(state, count)
            snapshots.append((done, self.collect(state)))
            if folder:
                rows = files.Rows(int(state.mask.sum()))
                tree = {"step": done, "particles": state.particles}
                plan = {"step": None, "particles": rows}
                files.save(folder / f"{done:06}", tree, plan, overwrite=True)
        return snapshots, state

    def collect(self, state: State) -> Particles:
        """The particles of all processes, in the order of their numbers."""
        mask = np.asarray(state.mask)
        own = jax.tree.map(lambda x: np.asarray(x)[mask], state.particles)
        whole = Particles(*map(np.concatenate, zip(*self.comm.allgather(own), strict=True)))
        order = np.argsort(whole.number)
        return jax.tree.map(lambda x: x[order], whole)


def room_for(expected: float, most: int) -> int:
    """Slots for a number of particles that is about what is expected."""
    return int(min(most, 1.5 * expected + 30))


def forces(x: jax.Array, others: jax.Array, is_other: jax.Array) -> jax.Array:
    """The forces on particles at x by those closer than REACH.

    These are all pairs. With more particles, sort them into cells, and take the pairs in
    nearby cells.
    """
    difference = x[:, jnp.newaxis] - others
    squares = jnp.sum(difference**2, axis=-1)
    acts = is_other & (squares < REACH**2) & (squares > 0)
    distance = jnp.sqrt(jnp.where(acts, squares, 1))
    strength = jnp.where(acts, STIFFNESS * (1 - distance / REACH) / distance, 0)
    return jnp.einsum("ij,ijk->ik", strength, difference)


def vortices(per_side: int) -> Particles:
    """A square of particles, slightly out of order, that turn round in four vortices."""
    random = np.random.default_rng(0)
    lattice = SPACING * (np.indices((per_side, per_side)).reshape(2, -1).T + 0.5)
    x = lattice + 0.1 * SPACING * random.uniform(-1, 1, lattice.shape)
    a, b = 2 * np.pi * lattice.T / (SPACING * per_side)
    v = SPEED * np.stack([-np.cos(a) * np.sin(b), np.sin(a) * np.cos(b)], axis=1)
    numbers = np.arange(per_side**2)
    return Particles(x, v, numbers, np.zeros_like(numbers))


def draw(box: Box, snapshots: list[tuple[int, Particles]], path: str) -> None:
    """The particles in the box at some times, with the parts of the processes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    count = len(snapshots)
    size = 1.8 * count, 2.05
    figure, axes = plt.subplots(1, count, figsize=size, squeeze=False, layout="constrained")
    area = (210 / box.length) ** 2 / SNAPSHOTS
    for axis, (step, particles) in zip(axes.flat, snapshots, strict=True):
        colors = particles.origin % 10
        axis.scatter(*particles.x.T, s=area, c=colors, cmap="tab10", vmin=0, vmax=9, lw=0)
        for line in np.arange(1, box.dims[0]) * box.widths[0]:
            axis.axvline(line, color="black", linewidth=0.8)
        for line in np.arange(1, box.dims[1]) * box.widths[1]:
            axis.axhline(line, color="black", linewidth=0.8)
        axis.set_title(f"step {step}", fontsize=11)
        axis.set(aspect="equal", xticks=[], yticks=[])
        axis.set(xlim=(0, box.length), ylim=(0, box.length))
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-side", type=int, default=30, help="particles along a side")
    parser.add_argument("--steps", type=int, default=300, help="steps in time")
    parser.add_argument("--output", default="particles.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="write files there")
    parser.add_argument("--restart", action="store_true", help="go on from a checkpoint")
    args = parser.parse_args()
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main() -> int:
    args = parse_arguments()
    jax.config.update("jax_enable_x64", True)
    particles = vortices(args.per_side)
    length = SPACING * args.per_side

    box = Box(comm, length, len(particles.x))
    snapshots, state = box.run(particles, args.steps, args.files, args.restart)
    alone, _ = Box(MPI.COMM_SELF, length, len(particles.x)).run(particles, args.steps)

    end, expected = snapshots[-1][1], alone[-1][1]
    arrivals = comm.allreduce(int(state.arrivals))
    failures = comm.allreduce(int(state.failures))
    is_complete = np.array_equal(end.number, particles.number) and failures == 0
    is_same = is_complete and np.allclose(end.v, expected.v, rtol=0, atol=TOLERANCE)
    momentum = np.abs(end.v.sum(0) - particles.v.sum(0)).max()
    if rank == 0:
        print(
            f"{len(particles.x)} particles, {size} process{'es' * (size > 1)} "
            f"({' x '.join(map(str, box.dims))}), {args.steps} steps in time"
        )
        print(f"{arrivals} times, a particle went to another process")
        print(f"change of the momentum: {momentum:.1e}")
        if is_complete:
            difference = np.abs(end.v - expected.v).max()
            print(f"largest difference to one process: {difference:.1e} (velocity)")
        print(f"all particles are there: {is_complete}")
        if not args.no_plot:
            draw(box, snapshots, args.output)
    return 0 if is_same and momentum < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
