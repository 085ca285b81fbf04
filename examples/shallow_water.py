"""An unstable jet in a rotating channel: shallow-water equations.

    mpiexec -n 2 python examples/shallow_water.py --output jet.png

The non-linear shallow-water equations in vector-invariant form,

    du/dt =  q V - d(K + g eta)/dx + nu lap(u)        q = (f + dv/dx - du/dy) / h
    dv/dt = -q U - d(K + g eta)/dy + nu lap(v)        K = (u^2 + v^2) / 2
    deta/dt = -dU/dx - dV/dy                          U, V = h u, h v,  h = DEPTH + eta

stand on an Arakawa C grid, with the potential-enstrophy-conserving scheme of Sadourny
(1975) in space and the third-order scheme of Adams and Bashforth in time. The channel
is periodic in x and has free-slip walls in y. Each process has a rectangle of it, with
one ring of ghost cells that it gets from its neighbours in every step. The picture needs
matplotlib; --no-plot does without.

With --files FOLDER, all fields are written to FOLDER/shallow_water.zarr while the run goes
on, and checkpoints beside them. With --restart, too, it goes on from the newest checkpoint,
on any number of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import files
from mpi4jax import notoken as mpi
from mpi4jax.halo import Plan

LENGTH, WIDTH = 4.0e6, 2.0e6  # of the channel, m
DEPTH = 500.0  # of the fluid at rest, m
GRAVITY = 9.81  # m/s^2
CORIOLIS, BETA = 1.0e-4, 1.6e-11  # on the axis, 1/s; its change northwards, 1/m/s
JET_SPEED, JET_WIDTH = 28.0, 1.1e5  # m/s, m
DAY = 86400.0
SNAPSHOTS = 4
MASS_TOLERANCE = 1e-5
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot, without --profile, does without it."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Grid:
    """The global grid, and the part of it that this process has."""

    def __init__(self, nx: int, ny: int) -> None:
        self.nx, self.ny = nx, ny
        self.dx, self.dy = LENGTH / nx, WIDTH / ny
        # A short boundary between the parts is little to send.
        self.columns = min(
            (n for n in range(1, size + 1) if size % n == 0),
            key=lambda columns: size // columns * nx + columns * ny,
        )
        self.rows = size // self.columns
        processes = comm.Create_cart((self.rows, self.columns), periods=(False, True))
        self.plan = Plan(processes, shape=(ny, nx))
        #: For fields without ghost cells.
        self.plan_of_own = Plan(processes, 0, shape=(ny, nx))
        first = self.plan.offset[0]
        self.at_south, self.at_north = first == 0, first + self.plan.local_shape[0] == ny

        # The fastest waves of the grid have the frequency 2 / (time to cross a cell),
        # and the scheme is stable up to a frequency of 0.72 / dt.
        speed = np.sqrt(GRAVITY * DEPTH) + JET_SPEED
        self.dt = 0.33 / (speed * np.hypot(1 / self.dx, 1 / self.dy))
        self.viscosity = 0.008 * JET_SPEED * max(self.dx, self.dy)


def initial_state(grid: Grid) -> jax.Array:
    """A jet in geostrophic balance, with a bump on it. Float64 until it is done."""
    x = (np.arange(grid.nx) + 0.5) * grid.dx
    y = (np.arange(grid.ny) + 0.5) * grid.dy - WIDTH / 2
    jet = JET_SPEED / np.cosh(y / JET_WIDTH) ** 2
    # g d(eta)/dy = -f u, between neighbouring rows of cells.
    coriolis = CORIOLIS + BETA * (y[1:] + y[:-1]) / 2
    slope = -coriolis * (jet[1:] + jet[:-1]) / 2 / GRAVITY
    height = np.concatenate([[0.0], np.cumsum(slope) * grid.dy])
    along, across = (x - LENGTH / 4) / 2.0e5, (y - 5.0e4) / 8.0e4
    bump = 6.0 * np.exp(-(along[None, :] ** 2) - across[:, None] ** 2)
    eta = (height - height.mean())[:, None] + bump
    u = np.repeat(jet[:, None], grid.nx, axis=1)
    fields = jnp.asarray(np.stack([eta, u, np.zeros_like(u)]), jnp.float32)
    return with_walls(grid, grid.plan.scatter(fields))


def with_walls(grid: Grid, fields: jax.Array) -> jax.Array:
    """A wall mirrors what is in front of it and lets nothing through."""
    if grid.at_south:
        fields = fields.at[:, 0, :].set(fields[:, 1, :].at[2].set(0.0))
    if grid.at_north:
        fields = fields.at[:, -1, :].set(fields[:, -2, :].at[2].set(0.0))
    return fields


def vorticity(grid: Grid, u: jax.Array, v: jax.Array) -> jax.Array:
    """The relative vorticity on the north-eastern corners of the cells."""
    return (v[:-1, 1:] - v[:-1, :-1]) / grid.dx - (u[1:, :-1] - u[:-1, :-1]) / grid.dy


def laplacian(grid: Grid, f: jax.Array) -> jax.Array:
    here = 2 * f[1:-1, 1:-1]
    return (f[1:-1, 2:] - here + f[1:-1, :-2]) / grid.dx**2 + (
        f[2:, 1:-1] - here + f[:-2, 1:-1]
    ) / grid.dy**2


def tendencies(grid: Grid, fields: jax.Array, first_row: int = 0) -> list[jax.Array]:
    """The time derivatives of all cells but the outermost ones.

    These are the ghost cells, or those around a part of the grid whose rows begin at
    `first_row` of this process. u stands on the eastern faces of the cells and v on the
    northern ones. Intermediate arrays lack the row or the column in which they have no
    value.
    """
    dx, dy = grid.dx, grid.dy
    rows = fields.shape[1] - 2
    eta, u, v = fields
    h = DEPTH + eta
    flux_x = u[:, :-1] * (h[:, :-1] + h[:, 1:]) / 2
    flux_y = v[:-1, :] * (h[:-1, :] + h[1:, :]) / 2

    corner_y = (grid.plan.offset[0] + first_row + np.arange(rows + 1)) * dy - WIDTH / 2
    coriolis = jnp.asarray(CORIOLIS + BETA * corner_y[:, None], jnp.float32)
    h_corner = (h[:-1, :-1] + h[:-1, 1:] + h[1:, :-1] + h[1:, 1:]) / 4
    q = (coriolis + vorticity(grid, u, v)) / h_corner

    kinetic = (u[1:, 1:] ** 2 + u[1:, :-1] ** 2 + v[1:, 1:] ** 2 + v[:-1, 1:] ** 2) / 4
    bernoulli = GRAVITY * eta[1:, 1:] + kinetic

    flux_x_corner = (flux_x[:-1, :] + flux_x[1:, :]) / 2
    flux_y_corner = (flux_y[:, :-1] + flux_y[:, 1:]) / 2
    d_eta = (
        -(flux_x[1:-1, 1:] - flux_x[1:-1, :-1]) / dx
        - (flux_y[1:, 1:-1] - flux_y[:-1, 1:-1]) / dy
    )
    d_u = (
        (q[1:, 1:] + q[:-1, 1:]) * (flux_y_corner[1:, 1:] + flux_y_corner[:-1, 1:]) / 4
        - (bernoulli[:-1, 1:] - bernoulli[:-1, :-1]) / dx
        + grid.viscosity * laplacian(grid, u)
    )
    d_v = (
        -(q[1:, 1:] + q[1:, :-1]) * (flux_x_corner[1:, 1:] + flux_x_corner[1:, :-1]) / 4
        - (bernoulli[1:, :-1] - bernoulli[:-1, :-1]) / dy
        + grid.viscosity * laplacian(grid, v)
    )
    if grid.at_north and first_row + rows == grid.plan.local_shape[0]:
        # The last faces are in the wall.
        d_v = d_v.at[-1, :].set(0.0)
    return [d_eta, d_u, d_v]


def make_solver(grid: Grid):
    """A compiled function that takes the state from step `first` to step `last`."""
    # Euler's scheme in the first step, second order in the next one.
    weights = grid.dt * jnp.array(
        [[1, 0, 0], [3 / 2, -1 / 2, 0], [23 / 12, -16 / 12, 5 / 12]], jnp.float32
    )

    def step(i, state):
        fields, last, before_last = state
        now = jnp.stack(tendencies(grid, fields))
        w = weights[jnp.minimum(i, 2)]
        change = w[0] * now + w[1] * last + w[2] * before_last
        fields = grid.plan.exchange(fields.at[:, 1:-1, 1:-1].add(change))
        return with_walls(grid, fields), now, last

    @jax.jit
    def solve(state, first, last):
        return jax.lax.fori_loop(first, last, step, state)

    return solve


@jax.jit
def mass_anomaly(fields: jax.Array) -> jax.Array:
    """The sum of eta over the whole channel: of h, it is the part that could change."""
    return mpi.allreduce(jnp.sum(fields[0, 1:-1, 1:-1]), op=MPI.SUM, comm=comm)


@jax.jit
def all_finite(fields: jax.Array) -> jax.Array:
    return mpi.allreduce(
        jnp.isfinite(fields).all().astype(jnp.int32), op=MPI.MIN, comm=comm
    )


def collect(grid: Grid, fields: jax.Array) -> tuple[jax.Array, jax.Array] | None:
    """The surface height and the vorticity of the whole channel, on rank 0."""
    eta, u, v = fields
    # It lacks the last row and column. These are ghost cells, which are not gathered.
    zeta = jnp.pad(vorticity(grid, u, v), ((0, 1), (0, 1)))
    return grid.plan.gather((eta, zeta), root=0)


def progress(count: int, label: str) -> Iterator[int]:
    """Count, while rank 0 says how much is done and how long the rest will take.

    On a terminal, the line is rewritten. Elsewhere, as under mpiexec, there are ten lines.
    """
    is_terminal, start, shown = sys.stderr.isatty(), time.perf_counter(), 0
    for n in range(count):
        yield n
        done = 20 * (n + 1) // count
        if rank == 0 and (is_terminal or done // 2 > shown // 2):
            seconds_left = (time.perf_counter() - start) * (count - n - 1) / (n + 1)
            line = f"{label} [{'#' * done:20}] {5 * done:3} %, {seconds_left:3.0f} s left"
            end = "\r" if is_terminal and n + 1 < count else "\n"
            print(line, end=end, file=sys.stderr, flush=True)
            shown = done


def draw(grid: Grid, snapshots: list, path: str) -> None:
    """Vorticity in colours, the height of the surface as lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x = (np.arange(grid.nx) + 0.5) * grid.dx / 1e3
    y = (np.arange(grid.ny) + 0.5) * grid.dy / 1e3
    # Few inches, so that the text can be read on a phone, too.
    figure, axes = plt.subplots(
        2, 2, figsize=(5.4, 4.1), sharex=True, sharey=True, layout="constrained"
    )
    levels = np.arange(-405, 406, 10)
    for axis, (days, (eta, zeta)) in zip(axes.flat, snapshots, strict=False):
        image = axis.imshow(
            1e5 * zeta,
            origin="lower",
            extent=(0, LENGTH / 1e3, 0, WIDTH / 1e3),
            cmap="RdBu_r",
            vmin=-18,
            vmax=18,
            interpolation="bilinear",
        )
        axis.contour(x, y, eta, levels, colors="k", linewidths=0.4, alpha=0.45)
        axis.set_title(f"day {days:.1f}", loc="left", fontsize=11)
        axis.set(xticks=[0, 1500, 3000], yticks=[0, 1000, 2000])
    for axis in axes[-1]:
        axis.set_xlabel("x (km)")
    for axis in axes[:, 0]:
        axis.set_ylabel("y (km)")
    label = "vorticity ($10^{-5}$ s$^{-1}$); lines: height, every 10 m"
    figure.colorbar(image, ax=axes, label=label, location="bottom", aspect=40)
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def output_of(
    grid: Grid, folder: Path | None, restarted_at: float | None
) -> contextlib.AbstractContextManager[files.Output | None]:
    """The output of this run, or of an earlier one that goes on, if there is to be any."""
    if folder is None:
        return contextlib.nullcontext()
    return files.Output(
        folder / "shallow_water.zarr",
        grid.plan,
        dims=("y", "x"),
        coords={
            "x": (np.arange(grid.nx) + 0.5) * grid.dx,
            "y": (np.arange(grid.ny) + 0.5) * grid.dy,
        },
        attrs={"title": "An unstable jet"},
        overwrite=restarted_at is None,
        after=restarted_at,
    )


@contextlib.contextmanager
def profiled(picture: str | None) -> Iterator[None]:
    """Find out what calls cost, and draw it, if there is to be a picture."""
    if picture is None:
        yield
        return
    from mpi4jax import diagnostics

    with diagnostics.profile() as profile:
        yield
    profile.plot(picture)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nx", type=int, default=240, help="cells along the channel")
    parser.add_argument("--ny", type=int, default=120, help="cells across the channel")
    parser.add_argument("--days", type=float, default=5.0, help="length of the run")
    parser.add_argument("--output", default="shallow_water.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="write files there")
    parser.add_argument("--restart", action="store_true", help="go on from a checkpoint")
    parser.add_argument("--profile", metavar="PICTURE", help="show who waited for whom")
    parser.add_argument(
        "--benchmark", action="store_true", help="time the loop and draw no picture"
    )
    args = parser.parse_args()
    args.no_plot |= args.benchmark
    draws = args.profile or not args.no_plot
    if draws and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main() -> int:
    args = parse_arguments()
    grid = Grid(args.nx, args.ny)
    fields = initial_state(grid)
    nothing = jnp.zeros((3, *grid.plan.local_shape), jnp.float32)
    state = fields, nothing, nothing
    mass = mass_anomaly(fields)

    steps = max(SNAPSHOTS, round(args.days * DAY / grid.dt))
    solve = make_solver(grid)
    jax.block_until_ready(solve(state, 0, 0))  # compiles
    if rank == 0:
        print(
            f"{grid.nx} x {grid.ny} cells, {size} process{'es' * (size > 1)} "
            f"({grid.rows} x {grid.columns}), {steps} steps of {grid.dt:.0f} s",
            flush=True,
        )

    chunks = 1 if args.benchmark else 48
    marks = [steps * n // chunks for n in range(chunks + 1)]
    snapshot_chunks = [chunks * n // (SNAPSHOTS - 1) for n in range(1, SNAPSHOTS)]
    first, restarted_at = 0, None
    plan = {"mark": None, "state": (grid.plan, grid.plan_of_own, grid.plan_of_own)}
    if args.files and args.restart and (newest := files.latest(args.files / "restart")):
        loaded = files.load(newest, plan, like={"mark": first, "state": state})
        first, state = loaded["mark"], loaded["state"]
        restarted_at = marks[first] * grid.dt
    snapshots = [(marks[first] * grid.dt / DAY, collect(grid, state[0]))]
    comm.Barrier()
    with profiled(args.profile), output_of(grid, args.files, restarted_at) as output:
        start = time.perf_counter()
        count = chunks - first
        for n in range(count) if args.benchmark else progress(count, "solving"):
            n += first
            state = jax.block_until_ready(solve(state, marks[n], marks[n + 1]))
            if output:
                fields = dict(zip(("eta", "u", "v"), state[0], strict=True))
                output.append(fields, time=marks[n + 1] * grid.dt)
                path = args.files / "restart" / f"{n + 1:02}"
                tree = {"mark": n + 1, "state": state}
                files.save(path, tree, plan, keep=2, overwrite=True, wait=False)
            if n + 1 in snapshot_chunks and not args.no_plot:
                snapshots.append((marks[n + 1] * grid.dt / DAY, collect(grid, state[0])))
        comm.Barrier()
        elapsed = time.perf_counter() - start

    volume = DEPTH * grid.nx * grid.ny
    drift = float((mass_anomaly(state[0]) - mass) / (volume + mass))
    finite = bool(all_finite(state[0]))
    conserved = abs(drift) <= MASS_TOLERANCE
    if rank == 0:
        if args.benchmark:
            per_step = 1e3 * elapsed / steps
            print(f"time of the loop: {elapsed:.3f} s ({per_step:.3f} ms per step)")
        elif finite and not args.no_plot:
            draw(grid, snapshots, args.output)
        print(f"mass conservation: relative drift {drift:+.1e}, all finite: {finite}")
    return 0 if conserved and finite else 1


if __name__ == "__main__":
    sys.exit(main())
