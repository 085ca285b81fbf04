"""Heat traced back in time: gradient descent through a 3D solver.

    mpiexec -n 2 python examples/heat_3d.py

The temperature T of a block with the heat capacity c and the heat sources s, in
surroundings with T = 0, follows

    c dT/dt = lap(T) + s

with the seven-point Laplacian on cells of size 1, and Euler's explicit scheme in time.
Each process has a box of the block, with one layer of ghost cells that it gets from its
neighbours in every step. Only the end is known. Which beginning leads there is found by
steps down the gradient of

    misfit(T at the beginning) = sum((T at the end - what was measured)^2) / 2

that JAX takes back through all steps in time, and through the messages. Each process
gets the part of this gradient that belongs to its own cells, which is all it needs.

Every process also does all of it alone, without MPI, to compare. With --overlap, the cells
that need no ghost cells are computed while these travel. The picture needs matplotlib;
--no-plot does without.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax.halo import Plan

DT = 0.1  # Euler's scheme is stable up to min(c) / 6
RATE = 1.0  # heat only spreads: the Hessian of the misfit is about 1 at most
TOLERANCE = 1e-5
INNER = np.s_[..., 1:-1, 1:-1, 1:-1]  # without the ghost cells
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""
Box = tuple[slice, ...]

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Block(NamedTuple):
    """Fields of the block, or of a part of it."""

    temperature: jax.Array
    capacity: jax.Array
    source: jax.Array


class Outcome(NamedTuple):
    """The result, with the misfits and gradients of all steps downhill in turn."""

    misfits: jax.Array
    end: jax.Array
    gradients: jax.Array
    beginning: jax.Array


def whole_block(shape: list[int]) -> Block:
    """Two hot spots in a block of two materials, with a heater in a corner."""
    x, y, z = np.meshgrid(*((np.arange(n) + 0.5) / n for n in shape), indexing="ij")

    def spot(*center: float) -> np.ndarray:
        squares = [(a - b) ** 2 for a, b in zip((x, y, z), center, strict=True)]
        return np.exp(-30 * sum(squares))

    temperature = spot(0.3, 0.4, 0.6) + 0.5 * spot(0.7, 0.6, 0.3)
    fields = temperature, np.where(z < 0.5, 1.0, 2.0), 0.05 * spot(0.9, 0.1, 0.9)
    return Block(*(jnp.asarray(field, jnp.float32) for field in fields))


def change(block: Block) -> jax.Array:
    """The change of the temperature of the inner cells in a step."""
    t = block.temperature
    laplacian = (
        (t[2:, 1:-1, 1:-1] + t[:-2, 1:-1, 1:-1])
        + (t[1:-1, 2:, 1:-1] + t[1:-1, :-2, 1:-1])
        + (t[1:-1, 1:-1, 2:] + t[1:-1, 1:-1, :-2])
        - 6 * t[INNER]
    )
    return DT * (laplacian + block.source[INNER]) / block.capacity[INNER]


def advance(block: Block) -> jax.Array:
    """The temperature after a step."""
    return block.temperature.at[INNER].add(change(block))


def exchange_and_advance(plan: Plan, block: Block) -> jax.Array:
    return advance(block._replace(temperature=plan.exchange(block.temperature)))


def advance_meanwhile(plan: Plan, block: Block) -> jax.Array:
    """A step with most of the cells computed while messages are in flight."""

    def change_inside(temperature: jax.Array) -> jax.Array:
        return change(part(block._replace(temperature=temperature), INNER))

    t, inside = plan.exchange(block.temperature, during=change_inside)
    block = block._replace(temperature=t)
    result = t.at[2:-2, 2:-2, 2:-2].add(inside)
    for layers, cells in faces():
        # At the edges of the box, one face after the other sets the same cells.
        result = result.at[cells].set(t[cells] + change(part(block, layers)))
    return result


def faces() -> Iterator[tuple[Box, Box]]:
    """The layers from which the cells at a face of a box are computed, and these cells."""
    for axis in range(3):
        for layers, layer in (np.s_[:3], np.s_[1:2]), (np.s_[-3:], np.s_[-2:-1]):
            cells = [np.s_[1:-1]] * 3
            cells[axis] = layer
            yield (np.s_[:],) * axis + (layers,), tuple(cells)


def part(block: Block, box: Box) -> Block:
    return Block(*(field[box] for field in block))


def make_solver(
    steps: int, advance: Callable[[Block], jax.Array]
) -> Callable[[Block], jax.Array]:
    """A function that takes a block from the beginning to the temperature at the end."""

    def solve(block: Block) -> jax.Array:
        def step(temperature: jax.Array, _: None) -> tuple[jax.Array, None]:
            return advance(block._replace(temperature=temperature)), None

        return jax.lax.scan(step, block.temperature, length=steps)[0]

    return solve


def trace_back(
    block: Block,
    solve: Callable[[Block], jax.Array],
    total: Callable[[jax.Array], jax.Array],
    descents: int,
    label: str,
) -> Outcome:
    """Measure where the temperature of a block ends, and find the beginning from that."""

    def misfit(beginning: jax.Array, block: Block, measured: jax.Array) -> jax.Array:
        end = solve(block._replace(temperature=beginning))
        return total(jnp.sum((end - measured)[INNER] ** 2)) / 2

    def descend(
        beginning: jax.Array, block: Block, measured: jax.Array
    ) -> tuple[jax.Array, ...]:
        value, gradient = jax.value_and_grad(misfit)(beginning, block, measured)
        # The surroundings are known: they stay as they are.
        return beginning.at[INNER].add(-RATE * gradient[INNER]), value, gradient

    measured = jax.jit(solve)(block)
    beginning = jnp.zeros_like(measured)
    compiled = jax.jit(descend).lower(beginning, block, measured).compile()
    misfits, gradients = [], []
    for _ in progress(descents, label):
        beginning, value, gradient = compiled(beginning, block, measured)
        misfits.append(value.item())
        gradients.append(gradient)
    return Outcome(jnp.array(misfits), measured, jnp.stack(gradients), beginning)


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


def draw(outcome: Outcome, truth: jax.Array, path: str) -> None:
    """The end, the beginning that was found from it, and the true one, in a slice."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pictures = {
        "end": outcome.end,
        "beginning, found": outcome.beginning,
        "beginning, true": truth,
    }
    # Few inches, so that the text can be read on a phone, too.
    figure, axes = plt.subplots(1, 3, figsize=(5.4, 2.7), layout="constrained")
    for axis, (name, field) in zip(axes, pictures.items(), strict=True):
        # The plane through the hotter spot.
        plane = field[:, field.shape[1] * 2 // 5, :].T
        image = axis.imshow(plane, origin="lower", cmap="YlOrRd", vmin=0, vmax=1)
        axis.axhline((plane.shape[0] - 1) / 2, color="black", linestyle="--", linewidth=1)
        axis.set_title(name, fontsize=11)
        axis.set(xlabel="x", xticks=[], yticks=[])
    axes[0].set_ylabel("z")
    figure.colorbar(image, ax=axes, label="temperature", location="bottom", aspect=40)
    figure.suptitle("dashed: the boundary between the two materials", fontsize=10)
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cells", type=int, nargs=3, default=[46, 38, 34], help="along x, y and z"
    )
    parser.add_argument("--steps", type=int, default=160, help="steps in time")
    parser.add_argument("--descents", type=int, default=40, help="steps downhill")
    parser.add_argument(
        "--overlap", action="store_true", help="compute while messages are in flight"
    )
    parser.add_argument("--output", default="heat_3d.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    args = parser.parse_args()
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main() -> int:
    args = parse_arguments()
    dims = MPI.Compute_dims(size, 3)
    boxes = comm.Create_cart(dims, periods=(False, False, False))
    plan = Plan(boxes, shape=args.cells, corners=False)
    way = advance_meanwhile if args.overlap else exchange_and_advance
    if rank == 0:
        print(
            f"{' x '.join(map(str, args.cells))} cells, {size} process{'es' * (size > 1)} "
            f"({' x '.join(map(str, dims))}), {args.steps} steps in time",
            flush=True,
        )
    block = whole_block(args.cells)

    def total(x: jax.Array) -> jax.Array:
        return mpi.allreduce(x, op=MPI.SUM, comm=comm)

    # Around the block, ghost cells are the surroundings, and stay 0.
    own = plan.scatter(block)
    solve = make_solver(args.steps, functools.partial(way, plan))
    misfits, *fields = trace_back(own, solve, total, args.descents, "together")
    outcome = Outcome(misfits, *plan.gather(fields))

    own = Block(*(jnp.pad(field, 1) for field in block))
    solve = make_solver(args.steps, advance)
    misfits, *fields = trace_back(own, solve, lambda x: x, args.descents, "alone   ")
    expected = Outcome(misfits, *(field[INNER] for field in fields))

    outcome, expected = jax.device_get((outcome, expected))
    differences = [
        np.abs(ours - theirs).max() / np.abs(theirs).max()
        for ours, theirs in zip(outcome, expected, strict=True)
    ]
    if rank == 0:
        first, last = outcome.misfits[0], outcome.misfits[-1]
        print(f"misfit at first {first:.3g}, in the last step {last:.3g}")
        for name, difference in zip(Outcome._fields, differences, strict=True):
            print(f"largest difference to one process: {difference:.1e} ({name})")
        if not args.no_plot:
            draw(outcome, jax.device_get(block.temperature), args.output)
    return 0 if all(difference <= TOLERANCE for difference in differences) else 1


if __name__ == "__main__":
    sys.exit(main())
