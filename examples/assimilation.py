"""Assimilation: the beginning of a flow from few observations.

    mpiexec -n 2 python examples/assimilation.py

Eddies in a rotating sheet of shallow water, in a periodic square with cells of size 1:

    dh/dt = -u.grad(h) - (1 + h) div(u)             + NU lap(h)
    du/dt = -u.grad(u) - CORIOLIS (-v, u) - grad(h) + NU lap(u)

At some points, the height h is measured at some times, with noise. Wanted is the beginning.
Weather services find it by 4D-Var: it is a smooth field, made from the white noise w, with
the wind that balances it. The most probable w minimizes

    misfit(w) = sum((h - measured)^2) / (2 NOISE^2) + sum(w^2) / 2.

Each process has a rectangle of the square. Diffrax takes the steps in time, and the
gradient goes back through them with the memory of some states only (--checkpoints). L-BFGS
goes downhill, with inner products of `mpi4jax.linalg`: each process has its part of w.

Random numbers are the same on any number of processes, and each process also computes a
gradient alone, to compare. The picture needs matplotlib; --no-plot does without.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import linalg
from mpi4jax import notoken as mpi
from mpi4jax.halo import Plan

DT, NU, CORIOLIS = 0.1, 0.01, 0.125  # waves travel a cell in the time 1
HEIGHT = 0.08  # the standard deviation of h at the beginning
SMOOTHINGS = 25  # each spreads w by 0.8 cells^2
MEASURED, TIMES, NOISE = 0.08, 10, 0.01  # the share of points, how often, the error
PAIRS = 8  # steps that L-BFGS remembers
NO_DIFFRAX = "The steps in time are Diffrax's, which is not installed: pip install diffrax"
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Flow:
    """The water, of which each process has a part, and what is measured of it."""

    def __init__(self, comm: MPI.Comm, args: argparse.Namespace) -> None:
        self.dims = MPI.Compute_dims(comm.Get_size(), 2)
        self.comm = comm.Create_cart(self.dims, [True, True])
        shape = (args.cells, args.cells)
        self.plan = Plan(self.comm, shape=shape, corners=False)
        self.own = Plan(self.comm, 0, shape=shape)  # of fields without ghost cells
        self.steps = -(-args.steps // TIMES)  # between two measurements
        self.checkpoints = args.checkpoints
        self.dot = partial(linalg.vdot, comm=self.comm)

        self.run = jax.jit(self.heights)
        self.error = jax.jit(self.error_of)
        self.misfit_and_gradient = jax.jit(jax.value_and_grad(self.misfit))

        # Each process computes its part of the random numbers.
        truth, places, noise = jax.random.split(jax.random.key(1), 3)
        scatter = self.own.scatter
        self.truth = scatter(lambda: jax.random.normal(truth, shape))
        self.is_measured = scatter(lambda: jax.random.uniform(places, shape)) < MEASURED
        noise = scatter(lambda: NOISE * jax.random.normal(noise, (TIMES, *shape)))
        self.measured = self.run(self.truth)[1:] + noise

    def differences(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The derivatives along both axes, and the Laplacian."""
        x = self.plan.with_ghosts(x)
        south, north = x[..., :-2, 1:-1], x[..., 2:, 1:-1]
        west, east = x[..., 1:-1, :-2], x[..., 1:-1, 2:]
        laplacian = south + north + west + east - 4 * x[..., 1:-1, 1:-1]
        return (east - west) / 2, (north - south) / 2, laplacian

    def height(self, w: jax.Array) -> jax.Array:
        """The height at the beginning: a smooth field."""

        def smooth(w: jax.Array, _: None) -> tuple[jax.Array, None]:
            return w + 0.2 * self.differences(w)[2], None

        w = jax.lax.scan(smooth, w, length=SMOOTHINGS)[0]
        return HEIGHT * np.sqrt(1.6 * np.pi * SMOOTHINGS) * w

    def rate(self, t: jax.Array, state: jax.Array, _: None) -> jax.Array:
        """The change of h, u and v in a step."""
        h, u, v = state
        along_x, along_y, laplacian = self.differences(state)
        stretching = (1 + h) * (along_x[1] + along_y[2])
        forces = (stretching, along_x[0] - CORIOLIS * v, along_y[0] + CORIOLIS * u)
        return DT * (NU * laplacian - u * along_x - v * along_y - jnp.stack(forces))

    def heights(self, w: jax.Array) -> jax.Array:
        """The heights at the beginning, and at the times of the measurements."""
        import diffrax

        def follow(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            """From one measurement to the next."""
            (state,) = diffrax.diffeqsolve(
                diffrax.ODETerm(self.rate),
                diffrax.Heun(),
                t0=0,
                t1=self.steps,
                dt0=1,
                y0=state,
                adjoint=diffrax.RecursiveCheckpointAdjoint(self.checkpoints),
                max_steps=self.steps,
            ).ys
            return state, state[0]

        h = self.height(w)
        along_x, along_y, _ = self.differences(h)
        beginning = jnp.stack([h, -along_y / CORIOLIS, along_x / CORIOLIS])
        _, later = jax.lax.scan(follow, beginning, length=TIMES)
        return jnp.concatenate([h[None], later])

    def misfit(self, w: jax.Array) -> jax.Array:
        """The misfit: a sum over the own cells of all processes."""
        errors = jnp.where(self.is_measured, self.heights(w)[1:] - self.measured, 0) / NOISE
        own = jnp.sum(errors**2) + jnp.sum(w**2)
        return mpi.allreduce(own, op=MPI.SUM, comm=self.comm) / 2

    def error_of(self, w: jax.Array) -> jax.Array:
        """The error of the height at the beginning, relative to the true one."""
        truth = self.height(self.truth)
        error = self.height(w) - truth
        return jnp.sqrt(self.dot(error, error) / self.dot(truth, truth))


def downhill(flow: Flow, gradient: jax.Array, pairs: deque) -> jax.Array:
    """The direction of L-BFGS (Nocedal, 1980), from the last steps and changes of slope."""
    factors = []
    for step, change in reversed(pairs):
        factors.append(flow.dot(step, gradient) / flow.dot(step, change))
        gradient = gradient - factors[-1] * change
    if pairs:
        step, change = pairs[-1]
        gradient = gradient * flow.dot(step, change) / flow.dot(change, change)
    for (step, change), factor in zip(pairs, reversed(factors), strict=True):
        other = flow.dot(change, gradient) / flow.dot(step, change)
        gradient = gradient + (factor - other) * step
    return -gradient


def assimilate(flow: Flow, iterations: int) -> tuple[jax.Array, list[float], list[float]]:
    """The w that is found, with the misfits and the errors on the way there."""
    w = jnp.zeros_like(flow.truth)
    value, gradient = flow.misfit_and_gradient(w)
    misfits, errors, pairs = [float(value)], [float(flow.error(w))], deque(maxlen=PAIRS)
    for _ in progress(iterations, "searching"):
        step = downhill(flow, gradient, pairs)
        if not pairs:
            step = step / jnp.sqrt(flow.dot(step, step))
        last, (value, gradient) = gradient, flow.misfit_and_gradient(w + step)
        # All processes have the same value, and so they halve the step together.
        while value > misfits[-1]:
            step = step / 2
            value, gradient = flow.misfit_and_gradient(w + step)
        w = w + step
        if flow.dot(step, gradient - last) > 0:
            pairs.append((step, gradient - last))
        misfits.append(float(value))
        errors.append(float(flow.error(w)))
    return w, misfits, errors


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


def draw(panels: dict[str, np.ndarray], errors: list[float], path: str) -> None:
    """The true and the found beginning, what both lead to, and the error on the way."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(5.4, 3.9), layout="constrained")
    *images, curve = axes.T.flat
    for axis, (title, values) in zip(images, panels.items(), strict=True):
        axis.imshow(values, origin="lower", cmap="RdBu_r", vmin=-0.25, vmax=0.25)
        axis.set_title(title, fontsize=11)
        axis.set(xticks=[], yticks=[])
    curve.plot(errors)
    curve.yaxis.tick_right()
    curve.set_title("error", fontsize=11)
    curve.set(xlabel="iteration", ylim=(0, None))
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=48, help="cells along an axis")
    parser.add_argument("--steps", type=int, default=2000, help="steps in time")
    parser.add_argument("--iterations", type=int, default=25, help="steps downhill")
    parser.add_argument(
        "--checkpoints", type=int, default=20, help="states that the gradient keeps"
    )
    parser.add_argument("--output", default="assimilation.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    args = parser.parse_args()
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    if importlib.util.find_spec("diffrax") is None:
        sys.exit(NO_DIFFRAX if rank == 0 else 1)
    return args


def main() -> int:
    args = parse_arguments()
    jax.config.update("jax_enable_x64", True)
    flow = Flow(comm, args)
    points = int(mpi.allreduce(jnp.sum(flow.is_measured), op=MPI.SUM, comm=comm))
    if rank == 0:
        dims = " x ".join(map(str, flow.dims))
        print(
            f"{args.cells} x {args.cells} cells, {size} process{'es' * (size > 1)} "
            f"({dims}), {TIMES * flow.steps} steps in time\n"
            f"{points} points, measured {TIMES} times",
            flush=True,
        )
    w, misfits, errors = assimilate(flow, args.iterations)

    # Where the slope is steep, and the water moves.
    halfway = w / 2
    _, gradient = flow.misfit_and_gradient(halfway)
    above, below = (flow.misfit_and_gradient(s * w)[0] for s in (0.5 + 1e-4, 0.5 - 1e-4))
    difference = float(above - below) / 2e-4
    slope_error = abs(float(flow.dot(gradient, w)) - difference) / abs(difference)
    alone = Flow(MPI.COMM_SELF, args)
    _, expected = alone.misfit_and_gradient(flow.own.gather(halfway))
    gradient = flow.own.gather(gradient)
    to_alone = float(abs(gradient - expected).max() / abs(expected).max())

    found, true = (flow.own.gather(flow.run(x)) for x in (w, flow.truth))
    places, measured = flow.own.gather((flow.is_measured, flow.measured[0]))
    if rank == 0:
        print(f"misfit at first {misfits[0]:.3g}, at the end {misfits[-1]:.3g}")
        print(f"relative error of the beginning: {errors[-1]:.3f}")
        print(f"relative error of the slope of the misfit: {slope_error:.1e} (gradient)")
        print(f"largest difference to one process: {to_alone:.1e} (gradient)")
        if not args.no_plot:
            panels = {
                "beginning": true[0],
                "end": true[-1],
                "measured": np.where(places, measured, np.nan),
                "end, found": found[-1],
                "beginning, found": found[0],
            }
            draw(panels, errors, args.output)
    smaller = misfits[-1] < misfits[0] and errors[-1] < errors[0]
    return 0 if smaller and slope_error < 1e-4 and to_alone < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
