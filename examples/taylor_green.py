"""Turbulence: the vortices of Taylor and Green break up and decay.

    mpiexec -n 4 python examples/taylor_green.py

The velocity u of an incompressible fluid in a periodic box follows

    du/dt = u x curl(u) - grad(p) + nu laplace(u),   div(u) = 0.

In the spectral method of Orszag and Patterson, derivatives are products with wavenumbers,
and the pressure is what makes the modes of du/dt orthogonal to theirs. The product of u and
its curl is computed at points. There are 3/2 as many points as modes along each axis, so it
has no aliasing errors. Each process has a pencil of points, and another one of modes, and
`mpi4jax.fft` moves them in between.

The loss of energy is checked against the dissipation, and the enstrophy (the mean square of
the vorticity) against the series that Taylor and Green (1937) computed by hand. The picture
needs matplotlib; --no-plot does without.

With --files FOLDER, checkpoints are written to FOLDER. With --restart, too, the run goes on
from the newest one, to a later time or on another number of processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import fft, files
from mpi4jax import notoken as mpi
from mpi4jax.pencil import Layout

SNAPSHOTS = 3
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Flow:
    """The equations for the modes of the velocity, an array with its three components."""

    def __init__(self, modes: int, viscosity: float) -> None:
        grid = comm.Create_cart(MPI.Compute_dims(size, 2), [True, True])
        points = 3 * modes // 2
        self.dims = grid.dims
        self.layout = Layout(grid, (points,) * 3, axes=[0, 1])
        self.plan = fft.Plan(self.layout, modes=(modes,) * 3, real=True, norm="forward")
        self.viscosity = viscosity
        self.k = self.plan.wavenumbers()
        self.k2 = sum(k**2 for k in self.k)
        # Modes of negative wavenumbers along the last axis are not there.
        self.weights = np.where(self.k[2] > 0, 2, 1)

    def start(self) -> jax.Array:
        """The modes of sin(x) cos(y) cos(z), -cos(x) sin(y) cos(z), 0."""
        axes = (2 * np.pi * np.arange(n) / n for n in self.layout.shape)
        x, y, z = np.meshgrid(*axes, indexing="ij", sparse=True)
        u = np.sin(x) * np.cos(y) * np.cos(z)
        v = -np.cos(x) * np.sin(y) * np.cos(z)
        velocity = np.stack([u, v, np.zeros_like(u)])
        return self.plan.forward(velocity[(slice(None), *self.layout.slices)])

    def curl(self, a: jax.Array) -> jax.Array:
        (x, y, z), (i, j, k) = a, self.k
        return 1j * jnp.stack([j * z - k * y, k * x - i * z, i * y - j * x])

    def derivative(self, modes: jax.Array) -> jax.Array:
        """The modes of du/dt."""
        # Both fields travel in the same messages.
        u, w = self.plan.backward((modes, self.curl(modes)))
        forces = self.plan.forward(jnp.cross(u, w, axis=0))
        pressure = sum(k * f for k, f in zip(self.k, forces, strict=True))
        pressure = pressure / np.maximum(self.k2, 1)
        forces = jnp.stack([f - k * pressure for k, f in zip(self.k, forces, strict=True)])
        return forces - self.viscosity * self.k2 * modes

    def step(self, modes: jax.Array, dt: float) -> jax.Array:
        """A step of the method of Runge and Kutta."""
        a = self.derivative(modes)
        b = self.derivative(modes + dt / 2 * a)
        c = self.derivative(modes + dt / 2 * b)
        d = self.derivative(modes + dt * c)
        return modes + dt / 6 * (a + 2 * b + 2 * c + d)

    def record(self, modes: jax.Array) -> jax.Array:
        """The energy and the enstrophy: means over the box."""
        squares = self.weights * jnp.sum(jnp.abs(modes) ** 2, axis=0)
        sums = jnp.stack([0.5 * jnp.sum(squares), jnp.sum(self.k2 * squares)])
        return mpi.allreduce(sums, op=MPI.SUM)

    def vorticity(self, modes: jax.Array) -> jax.Array | None:
        """The magnitude of the vorticity in a plane, on the first process."""
        w = self.plan.backward(self.curl(modes))
        whole = self.layout.gather(jnp.sqrt(jnp.sum(w**2, axis=0)), root=0)
        return None if whole is None else whole[:, :, whole.shape[2] // 8]


def run(
    flow: Flow, steps: int, dt: float, folder: Path | None, restart: bool
) -> tuple[np.ndarray, list[tuple[float, jax.Array | None]]]:
    """Records of all steps, and the vorticity in a plane at some times."""

    @partial(jax.jit, static_argnums=1)
    def advance(modes: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
        def step(modes: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return flow.step(modes, dt), flow.record(modes)

        return jax.lax.scan(step, modes, length=steps)

    state = {"modes": flow.start(), "records": np.empty((0, 2))}
    plan = {"modes": flow.plan.spectral, "records": None}
    if folder and restart and (newest := files.latest(folder)):
        state = files.load(newest, plan)
    planes = [(dt * len(state["records"]), flow.vorticity(state["modes"]))]
    part = -(-steps // (SNAPSHOTS - 1))
    while (done := len(state["records"])) < steps:
        count = min(part, steps - done)
        modes, records = advance(state["modes"], count)
        state = {"modes": modes, "records": np.concatenate([state["records"], records])}
        planes.append((dt * (done + count), flow.vorticity(modes)))
        if folder:
            files.save(folder / f"{done + count:06}", state, plan, overwrite=True)
    return state["records"], planes


def series(time: np.ndarray, reynolds: float) -> np.ndarray:
    """The enstrophy relative to that at the beginning, up to the third power of time."""
    second = 5 / 48 + 18 / reynolds**2
    third = -(5 / 3 + 36 / reynolds**2) / reynolds
    return 1 - 6 / reynolds * time + second * time**2 + third * time**3


def draw(
    enstrophy: np.ndarray, time: np.ndarray, reynolds: float, planes: list, path: str
) -> None:
    """The enstrophy, and the vorticity in a plane at some times."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1,
        1 + len(planes),
        figsize=(1.8 * (1 + len(planes)), 2.0),
        width_ratios=[1.25] + [1] * len(planes),
        layout="constrained",
    )
    curve, *images = axes
    begins = time <= 2
    curve.plot(time, enstrophy, label="computed")
    curve.plot(time[begins], series(time[begins], reynolds), "--", label="1937")
    curve.set_title("enstrophy", fontsize=11)
    curve.legend(frameon=False, fontsize=9)
    curve.set(xlabel="time", ylim=(0, None))
    for axis, (moment, plane) in zip(images, planes, strict=True):
        axis.imshow(plane.T, origin="lower", cmap="inferno", vmin=0)
        axis.set_title(f"time {moment:.3g}", fontsize=11)
        axis.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", type=int, default=48, help="modes along an axis")
    parser.add_argument("--reynolds", type=float, default=200, help="Reynolds number")
    parser.add_argument("--time", type=float, default=10, help="when it ends")
    parser.add_argument("--dt", type=float, default=0.05, help="step in time")
    parser.add_argument("--output", default="taylor_green.png", help="the picture")
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
    flow = Flow(args.modes, 1 / args.reynolds)
    steps = max(round(args.time / args.dt), SNAPSHOTS)
    records, planes = run(flow, steps, args.dt, args.files, args.restart)

    energy, enstrophy = records.T
    time = args.dt * np.arange(len(energy))
    means = (enstrophy[1:] + enstrophy[:-1]) / 2
    dissipated = args.dt * np.sum(means) / args.reynolds
    imbalance = abs(energy[0] - energy[-1] - dissipated) / energy[0]
    early = np.searchsorted(time, 0.2)
    enstrophy = enstrophy / enstrophy[0]
    error = abs(enstrophy - series(time, args.reynolds))[early]
    if rank == 0:
        dims = " x ".join(map(str, flow.dims))
        print(
            f"{args.modes}^3 modes, {size} process{'es' * (size > 1)} ({dims}), "
            f"{len(time)} steps in time"
        )
        print(f"largest enstrophy: {enstrophy.max():.3f} at {time[enstrophy.argmax()]:.2f}")
        print(f"energy left: {energy[-1] / energy[0]:.4f}")
        print(f"energy lost without dissipation: {imbalance:.1e}")
        print(
            f"difference to the series at time {time[early]:.2f}: {error:.1e} (enstrophy)"
        )
        if not args.no_plot:
            draw(enstrophy, time, args.reynolds, planes, args.output)
    return 0 if imbalance < 1e-3 and error < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
