"""Steady heat on a mesh, and which heaters would warm a sensor.

    mpiexec -n 4 python examples/heat_mesh.py

The temperature T of a plate with the conductivity k and the heat sources s, whose
surroundings have T = 0, does not change if

    -div(k grad(T)) = s.

JAX shards the fields over a grid of processes. In a shard_map, conjugate gradients solve
for T until the residual, a psum, is small: ghost cells come by messages of mpi4jax, and
sums by JAX. Then JAX differentiates the temperature of a sensor with respect to all
sources, by another solve.

Every process also solves it alone, to compare. The picture needs matplotlib; --no-plot does
without.
"""

import argparse
import functools
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import distributed
from mpi4jax.halo import Plan

TOLERANCE = 1e-5  # of the residual, relative to the sources
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""


def plate(cells):
    """Two rooms, between them a wall with a door: k, s of two heaters, and the sensor."""
    y, x = (np.mgrid[:cells, :cells] + 0.5) / cells

    def spot(center_y, center_x):
        return np.exp(-800 * ((y - center_y) ** 2 + (x - center_x) ** 2))

    wall = (abs(x - 0.55) < 0.03) & (abs(y - 0.3) > 0.08)
    fields = np.where(wall, 0.02, 1.0), spot(0.7, 0.25) + spot(0.2, 0.8), spot(0.75, 0.8)
    conductivity, source, sensor = (field.astype(np.float32) for field in fields)
    return conductivity, source, sensor / sensor.sum()


def between(k):
    """The conductivities of the faces of cells: below, above, to the left and right."""
    inner = k[1:-1, 1:-1]
    others = k[:-2, 1:-1], k[2:, 1:-1], k[1:-1, :-2], k[1:-1, 2:]
    return [2 * inner * other / (inner + other) for other in others]


def temperature(with_ghosts, total, conductivity, source):
    """The temperature, by conjugate gradients, and the relative residual.

    `with_ghosts` puts ghost cells around a field, and `total` sums over all processes.
    """
    faces = between(with_ghosts(conductivity, fill_value=1.0))

    def lost(t):
        """The heat that flows out of each cell."""
        t = with_ghosts(t)
        below, above, left, right = faces
        return (
            below * (t[1:-1, 1:-1] - t[:-2, 1:-1])
            + above * (t[1:-1, 1:-1] - t[2:, 1:-1])
            + left * (t[1:-1, 1:-1] - t[1:-1, :-2])
            + right * (t[1:-1, 1:-1] - t[1:-1, 2:])
        )

    def dot(a, b):
        return total(jnp.sum(a * b))

    def solve(_, source):
        limit = TOLERANCE**2 * dot(source, source)

        def step(state):
            t, residual, direction, square = state
            change = lost(direction)
            length = square / dot(direction, change)
            t, residual = t + length * direction, residual - length * change
            next_square = dot(residual, residual)
            direction = residual + next_square / square * direction
            return t, residual, direction, next_square

        start = 0 * source, source, source, dot(source, source)
        return lax.while_loop(lambda state: state[-1] > limit, step, start)[0]

    t = lax.custom_linear_solve(lost, source, solve, symmetric=True)
    residual = source - lost(t)
    return t, jnp.sqrt(dot(residual, residual) / dot(source, source))


def sensitivity(with_ghosts, total, conductivity, source, sensor):
    """T, its residual, and the derivative of T at the sensor by each source."""

    def measured(source):
        t, residual = temperature(with_ghosts, total, conductivity, source)
        return total(jnp.sum(sensor * t)), (t, residual)

    gradient, (t, residual) = jax.grad(measured, has_aux=True)(source)
    return t, gradient, residual


def draw(t, gradient, source, sensor, path):
    """The temperature, and how much a heater at each place would add at the sensor."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Few inches, so that the text can be read on a phone, too.
    figure, axes = plt.subplots(1, 2, figsize=(5.4, 3.1), layout="constrained")
    titles = "temperature", "effect of a heater on the sensor"
    for axis, title, field in zip(axes, titles, (t, gradient), strict=True):
        image = axis.imshow(field, origin="lower", cmap="YlOrRd")
        axis.contour(sensor, levels=[sensor.max() / 5], colors="blue")
        axis.contour(source, levels=[source.max() / 5], colors="black", linestyles="dashed")
        axis.set_title(title, fontsize=10)
        axis.set(xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, location="bottom")
    figure.suptitle("dashed: heaters, blue: the sensor", fontsize=10)
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=96, help="along each side")
    parser.add_argument("--output", default="heat_mesh.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    args = parser.parse_args()
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if MPI.COMM_WORLD.Get_rank() == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main():
    args = parse_arguments()
    distributed.initialize()
    rank, size = jax.process_index(), jax.process_count()
    dims = MPI.Compute_dims(size, 2)
    # A side that the processes divide.
    cells = -(-args.cells // size) * size
    fields = plate(cells)

    mesh = Mesh(np.array(jax.devices()).reshape(dims), ("y", "x"))
    plan = Plan(mesh, corners=False)
    divided = P("y", "x")

    def total(x):
        return lax.psum(x, ("y", "x"))

    in_parts = jax.shard_map(
        functools.partial(sensitivity, plan.with_ghosts, total),
        mesh=mesh,
        in_specs=(divided,) * 3,
        out_specs=(divided, divided, P()),
    )
    parts = jax.device_put(fields, NamedSharding(mesh, divided))
    *together, residual = jax.jit(in_parts)(*parts)

    def padded(x, fill_value=0.0):
        return jnp.pad(x, 1, constant_values=fill_value)

    solve_alone = functools.partial(sensitivity, padded, lambda x: x)
    *alone, _ = jax.device_get(jax.jit(solve_alone)(*fields))

    differences = []
    for result, expected in zip(together, alone, strict=True):
        (part,) = result.addressable_shards
        difference = np.abs(part.data - expected[part.index]).max()
        differences.append(difference / np.abs(expected).max())
    residual = float(residual.addressable_data(0))
    print(
        f"r{rank} | {cells} x {cells} cells, {dims[0]} x {dims[1]} processes, residual "
        f"{residual:.1e}, largest difference to one process: {max(differences):.1e}"
    )
    if rank == 0 and not args.no_plot:
        draw(*alone, *fields[1:], args.output)
    return 0 if max(differences) < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
