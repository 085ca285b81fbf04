"""Sources of a field, found from measurements at some points.

    mpiexec -n 4 python examples/sources.py

The field u of sources f in a periodic box follows -laplace(u) = f. It is measured at random
points. Wanted are the smoothest sources that explain the measurements:

    minimize  sum over the points (u - measured)^2 + SMOOTHING * sum of grad(f)^2.

Each process has a slab of the box. `mpi4jax.fft` solves for u, and JAX differentiates the
misfit through it, messages included, with respect to all values of f. The gradient is
linear in f, so conjugate gradients (`mpi4jax.linalg.cg`) find where it is zero.

Every process also does all of it alone, to compare. The picture needs matplotlib; --no-plot
does without.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import fft, linalg
from mpi4jax.pencil import Layout

SMOOTHING = 1e-7
MEASURED = 0.05  # of all points
TOLERANCE = 1e-8  # of the gradient, relative to that of no sources
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Result(NamedTuple):
    sources: np.ndarray
    field: np.ndarray
    iterations: int
    #: The slope of the misfit along a direction, by its gradient and by differences.
    slopes: tuple[float, float]


class Box:
    """A periodic box of length 2 pi, of which each process has a slab."""

    def __init__(self, comm: MPI.Comm, points: tuple[int, int]) -> None:
        self.comm = comm.Create_cart([comm.Get_size()], [True])
        self.layout = Layout(self.comm, points, axes=[0])
        self.plan = fft.Plan(self.layout, real=True)
        self.k2 = sum(k**2 for k in self.plan.wavenumbers())

    def field(self, sources: jax.Array) -> jax.Array:
        """The field of sources, without its mean."""
        modes = self.plan.forward(sources)
        return self.plan.backward(jnp.where(self.k2 > 0, modes / np.maximum(self.k2, 1), 0))

    def roughness(self, f: jax.Array) -> jax.Array:
        """The sum of grad(f)^2 over the points of this process."""
        return jnp.sum(f * self.plan.backward(self.k2 * self.plan.forward(f)))

    def recover(self, sources: np.ndarray, is_measured: np.ndarray) -> Result:
        """The sources, from what they cause at some points."""
        own = self.layout.slices
        is_measured, actual = is_measured[own], jnp.asarray(sources[own])
        measured = jax.jit(self.field)(actual)

        def misfit(f: jax.Array) -> jax.Array:
            """The part of this process. What is minimized is the sum of all parts."""
            errors = jnp.where(is_measured, self.field(f) - measured, 0)
            return 0.5 * (jnp.sum(errors**2) + SMOOTHING * self.roughness(f))

        gradient = jax.grad(misfit)

        def curvature(direction: jax.Array) -> jax.Array:
            return jax.jvp(gradient, (actual,), (direction,))[1]

        nothing = jnp.zeros_like(actual)

        @jax.jit
        def solve() -> tuple[jax.Array, linalg.Info]:
            return linalg.cg(curvature, -gradient(nothing), rtol=TOLERANCE, comm=self.comm)

        recovered, info = solve()
        direction = jnp.sin(actual)
        slope = self.comm.allreduce(float(jnp.sum(gradient(nothing) * direction)))
        both = (float(jax.jit(misfit)(end * direction)) for end in (1e-3, -1e-3))
        difference = self.comm.allreduce(np.subtract(*both)) / 2e-3
        return Result(
            self.layout.gather(recovered),
            self.layout.gather(jax.jit(self.field)(recovered)),
            int(info.iterations),
            (slope, float(difference)),
        )


def blobs(points: tuple[int, int]) -> np.ndarray:
    """Some sources and sinks, which cancel on the whole."""
    x, y = (2 * np.pi * np.arange(n) / n for n in points)
    centers = [(1.5, 1.2, 1), (4.2, 2.4, -1), (2.3, 4.4, -1), (5.0, 5.1, 1)]
    total = np.zeros(points)
    for a, b, strength in centers:
        exponent = np.cos(x[:, None] - a) + np.cos(y - b) - 2
        total += strength * np.exp(4 * exponent)
    return total - total.mean()


def draw(actual: np.ndarray, is_measured: np.ndarray, result: Result, path: str) -> None:
    """The sources, the measurements of their field, and what is found."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(5.4, 2.05), layout="constrained")
    limit = abs(actual).max()
    at_points = np.where(is_measured, result.field, np.nan)
    panels = (
        ("sources", actual, limit),
        ("measured", at_points, np.nanmax(abs(at_points))),
        ("found", result.sources, limit),
    )
    for axis, (title, values, most) in zip(axes, panels, strict=True):
        axis.imshow(values.T, origin="lower", cmap="RdBu_r", vmin=-most, vmax=most)
        axis.set_title(title, fontsize=11)
        axis.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--points", type=int, nargs=2, default=(90, 75), help="points along each axis"
    )
    parser.add_argument("--output", default="sources.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    args = parser.parse_args()
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main() -> int:
    args = parse_arguments()
    jax.config.update("jax_enable_x64", True)
    points = tuple(args.points)
    actual = blobs(points)
    is_measured = np.random.default_rng(0).random(points) < MEASURED
    result = Box(comm, points).recover(actual, is_measured)
    alone = Box(MPI.COMM_SELF, points).recover(actual, is_measured)

    slope, difference = result.slopes
    slope_error = abs(slope - difference) / abs(difference)
    error = np.linalg.norm(result.sources - actual) / np.linalg.norm(actual)
    to_alone = abs(result.sources - alone.sources).max()
    if rank == 0:
        print(
            f"{points[0]} x {points[1]} points, {is_measured.sum()} measured, "
            f"{size} process{'es' * (size > 1)}"
        )
        print(f"{result.iterations} iterations")
        print(f"relative error of the sources: {error:.3f}")
        print(f"relative error of the slope of the misfit: {slope_error:.1e} (gradient)")
        print(f"largest difference to one process: {to_alone:.1e} (sources)")
        if not args.no_plot:
            draw(actual, is_measured, result, args.output)
    return 0 if error < 0.3 and slope_error < 1e-6 and to_alone < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
