"""Finite elements: where a plate should conduct heat better.

    mpiexec -n 4 python examples/poisson_fem.py

The temperature u of a plate with the conductivity k, which is heated everywhere by f and
cooled to u = 0 along a part of its edge, follows

    -div(k grad(u)) = f.

On a mesh of triangles, u is linear in each triangle, and given by its values at the nodes.
Each process has some of the triangles, and a row for each of their nodes. Nodes at the edge
of its part are in other parts, too: one process owns such a node, the others have ghosts.

- What the triangles of a process contribute to its nodes is summed by a scatter, and what
  several processes contribute to a node by `accumulate`.
- Conjugate gradients (`mpi4jax.linalg.cg`) solve for u. They never need a matrix, only its
  product with a field.
- JAX differentiates the compliance, the integral of f u, with respect to the conductivity
  of each triangle, by a second solve. Each process gets the part for its own triangles.

Every process also assembles and solves it alone, by SciPy, to compare. The picture needs
matplotlib; --no-plot does without.

With --files FOLDER, the solution is written to FOLDER/solution, with rows in the order of
the nodes and triangles of the whole mesh.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from scipy import sparse, spatial
from scipy.sparse.linalg import spsolve
from scipy.stats import qmc

from mpi4jax import files, linalg
from mpi4jax.unstructured import Plan

TOLERANCE = 1e-10  # of the residual, relative to the load
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Mesh(NamedTuple):
    """A mesh of triangles, or the part of a process."""

    #: The coordinates of the nodes.
    points: np.ndarray
    #: The three nodes of each triangle.
    triangles: np.ndarray


def plate(count):
    """A mesh of the unit square with about `count` nodes."""
    side = np.linspace(0, 1, round(count**0.5))
    edge = [(x, y) for x in side for y in side if {x, y} & {0, 1}]
    # Points that look random, but leave no large holes.
    inner = qmc.Halton(2, scramble=False).random(count - len(edge))
    inner = inner[np.min([inner, 1 - inner], axis=(0, 2)) > 0.5 * side[1]]
    points = np.concatenate([edge, inner])
    return Mesh(points, spatial.Delaunay(points).simplices)


def divided(centers, ranks):
    """The rank that gets each triangle: halves of the plate, halves of these, and so on."""
    owner = np.empty(len(centers), int)

    def divide(triangles, ranks):
        if len(ranks) == 1:
            owner[triangles] = ranks[0]
            return
        axis = np.argmax(np.ptp(centers[triangles], axis=0))
        triangles = triangles[np.argsort(centers[triangles, axis])]
        half = len(ranks) // 2
        first = len(triangles) * half // len(ranks)
        divide(triangles[:first], ranks[:half])
        divide(triangles[first:], ranks[half:])

    divide(np.arange(len(centers)), ranks)
    return owner


def conductivity_of(centers):
    """A plate with two slits, which conduct little."""
    x, y = centers.T
    slits = (abs(y - 0.35) < 0.04) & (x < 0.7) | (abs(y - 0.7) < 0.04) & (x > 0.4)
    return np.where(slits, 0.05, 1.0)


def is_cooled(points):
    """Whether nodes are on the part of the edge that is cooled: the lower left corner."""
    x, y = points.T
    return (x == 0) & (y < 0.25) | (y == 0) & (x < 0.25)


def matrices_of(mesh):
    """The stiffness matrix of each triangle for k = 1, and its area.

    The gradients of the three linear functions that are 1 at one corner and 0 at the others
    are the opposite sides, turned by 90 degrees, over twice the area.
    """
    corners = mesh.points[mesh.triangles]
    sides = np.roll(corners, 1, axis=1) - np.roll(corners, -1, axis=1)
    (ax, ay), (bx, by) = sides[:, 0].T, sides[:, 1].T
    areas = abs(ax * by - ay * bx) / 2
    return np.einsum("tid,tjd->tij", sides, sides) / (4 * areas[:, None, None]), areas


class Part:
    """The triangles of a process, with the plans that tie them to other processes'."""

    def __init__(self, mesh):
        centers = mesh.points[mesh.triangles].mean(axis=1)
        own = np.flatnonzero(divided(centers, range(size)) == rank)
        nodes, triangles = np.unique(mesh.triangles[own], return_inverse=True)
        self.mesh = Mesh(mesh.points[nodes], triangles.reshape(-1, 3))
        self.matrices, self.areas = matrices_of(self.mesh)
        self.is_free = ~is_cooled(self.mesh.points)
        # The lowest rank that has a node owns it. Triangles have no ghosts: their plan only
        # divides and joins fields.
        self.nodes = Plan.from_global(nodes, comm=comm)
        self.triangles = Plan.from_global(own, comm=comm)

    def sum_at_nodes(self, of_triangles):
        """What all own triangles contribute to their three nodes, without other parts."""
        at_nodes = jnp.zeros(self.nodes.size)
        return at_nodes.at[self.mesh.triangles].add(of_triangles)

    def load(self):
        """The integral of f = 1 times the function of each node."""
        thirds = jnp.broadcast_to(self.areas[:, None] / 3, self.mesh.triangles.shape)
        return jnp.where(self.is_free, self.nodes.sum_shared(self.sum_at_nodes(thirds)), 0)

    def product(self, conductivity, u):
        """The stiffness matrix times u. Where the plate is cooled, it is the identity."""
        u_of_triangles = jnp.where(self.is_free, u, 0)[self.mesh.triangles]
        flows = jnp.einsum("t,tij,tj->ti", conductivity, self.matrices, u_of_triangles)
        sums = self.nodes.accumulate(self.sum_at_nodes(flows))
        return jnp.where(self.is_free, sums, u)

    def diagonal(self, conductivity):
        """The diagonal of the matrix, at own nodes and at ghosts."""
        of_triangles = jnp.einsum("t,tii->ti", conductivity, self.matrices)
        sums = self.nodes.sum_shared(self.sum_at_nodes(of_triangles))
        return jnp.where(self.is_free, sums, 1)

    def solve(self, conductivity):
        """The temperature at the nodes, and how the solver has ended."""
        diagonal = self.diagonal(conductivity)
        return linalg.cg(
            lambda u: self.product(conductivity, u),
            self.load(),
            M=lambda residual: residual / diagonal,
            rtol=TOLERANCE,
            plan=self.nodes,
        )

    def compliance(self, conductivity):
        """The integral of f u, and the solution. The sum counts each node once."""
        u, info = self.solve(conductivity)
        return linalg.vdot(self.load(), u, plan=self.nodes), (u, info)


def solve_alone(mesh, conductivity):
    """The temperature, the compliance and its gradient, by a sparse matrix."""
    matrices, areas = matrices_of(mesh)
    count, triangles = len(mesh.points), mesh.triangles
    rows, columns = np.broadcast_arrays(triangles[:, :, None], triangles[:, None, :])
    entries = conductivity[:, None, None] * matrices
    places = rows.ravel(), columns.ravel()
    matrix = sparse.csr_array((entries.ravel(), places), (count, count))
    load = np.bincount(triangles.ravel(), np.repeat(areas / 3, 3), count)
    free = np.flatnonzero(~is_cooled(mesh.points))
    u = np.zeros(count)
    u[free] = spsolve(matrix[free][:, free].tocsc(), load[free])
    # Known on paper: a triangle's energy for k = 1, with the opposite sign.
    gradient = -np.einsum("ti,tij,tj->t", u[triangles], matrices, u[triangles])
    return u, load[free] @ u[free], gradient


def draw(mesh, u, gradient, path):
    """The parts of the processes, the temperature, and where conduction helps most."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Few inches, so that the text can be read on a phone, too.
    figure, axes = plt.subplots(1, 3, figsize=(5.4, 2.1), layout="constrained")
    corners = (*mesh.points.T, mesh.triangles)
    parts = divided(mesh.points[mesh.triangles].mean(axis=1), range(size))
    axes[0].tripcolor(*corners, parts, cmap="Pastel1", edgecolors="gray", linewidth=0.2)
    axes[1].tripcolor(*corners, u, cmap="YlOrRd", shading="gouraud")
    # Triangles are of different sizes: the gradient per area, which the slope squared is.
    _, areas = matrices_of(mesh)
    slope = np.sqrt(-gradient / areas)
    axes[2].tripcolor(*corners, slope, cmap="viridis", vmax=np.quantile(slope, 0.99))
    titles = "processes", "temperature", "effect of k"
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=11)
        axis.set(aspect="equal")
        axis.axis("off")
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2000, help="of the mesh, about")
    parser.add_argument("--output", default="poisson_fem.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="write files there")
    args = parser.parse_args()
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main():
    args = parse_arguments()
    jax.config.update("jax_enable_x64", True)

    # As if it were read from a file.
    mesh = comm.bcast(plate(args.nodes) if rank == 0 else None)
    conductivity = conductivity_of(mesh.points[mesh.triangles].mean(axis=1))

    part = Part(mesh)
    own_conductivity = part.triangles.scatter(conductivity)
    differentiated = jax.jit(jax.value_and_grad(part.compliance, has_aux=True))
    (compliance, (u, info)), gradient = differentiated(own_conductivity)
    if args.files:
        solution = {"points": part.mesh.points, "temperature": u, "gradient": gradient}
        plan = {"points": part.nodes, "temperature": part.nodes, "gradient": part.triangles}
        files.save(args.files / "solution", solution, plan, overwrite=True)
    together = part.nodes.gather(u), compliance, part.triangles.gather(gradient)

    alone = solve_alone(mesh, conductivity)
    names = "temperature", "compliance", "gradient"
    differences = {
        name: np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs))
        for name, ours, theirs in zip(names, jax.device_get(together), alone, strict=True)
    }
    shared = comm.reduce(len(part.nodes.ghost_rows))
    if rank == 0:
        print(
            f"{len(mesh.points)} nodes, {len(mesh.triangles)} triangles, {size} "
            f"process{'es' * (size > 1)}, {shared} ghosts"
        )
        print(f"compliance {compliance:.6f}, after {info.iterations} iterations")
        for name, difference in differences.items():
            print(f"largest difference to one process: {difference:.1e} ({name})")
        if not args.no_plot:
            draw(mesh, alone[0], alone[2], args.output)
    return 0 if max(differences.values()) < 1e-7 else 1


if __name__ == "__main__":
    sys.exit(main())
