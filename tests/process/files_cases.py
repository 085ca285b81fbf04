"""Random trees that some processes save and others load, for test_files.py.

    mpiexec -n 3 python files_cases.py save FOLDER 0 10
    mpiexec -n 2 python files_cases.py load FOLDER 0 10

A case has the same whole arrays on any number of processes, which follow from its seed.
"""

import functools
import sys
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import files, halo, pencil, unstructured

jax.config.update("jax_enable_x64", True)

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
TYPES = (
    *"bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split(),
    *"float16 float32 float64 complex64 complex128 bfloat16".split(),
    *"float8_e4m3fn float8_e5m2 int4 uint4".split(),
)
#: Grids with one and two axes. One that is periodic along some axes is another one.
GRIDS = {
    periods: comm.Create_cart(MPI.Compute_dims(SIZE, len(periods)), periods)
    for periods in [(False,), (True,), (False, True), (True, False), (False, False)]
}


def random_array(random, shape, name):
    dtype = jnp.dtype(name)
    bits = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if name == "bool":
        bits &= 1
    if name in ("int4", "uint4"):
        return random.integers(0, 8, shape).astype(dtype)
    if name == "float8_e4m3fn":
        bits &= 0x77  # no NaN, which may be another NaN on its way through a conversion
    return bits.reshape(-1).view(dtype).reshape(shape)


class OnGrid:
    """An array of cells, with cells around the edges of a grid."""

    def __init__(self, random):
        self.periods = list(GRIDS)[random.integers(len(GRIDS))]
        count = len(self.periods)
        cells = tuple(map(int, random.integers(24, 40, count)))
        self.lead = tuple(map(int, random.integers(1, 4, random.integers(0, 2))))
        self.widths = [tuple(map(int, random.integers(0, 3, 2))) for _ in range(count)]
        self.extra = [int(not p and random.integers(3) == 0) for p in self.periods]
        self.cells = cells
        self.edges = [
            (0, 0) if periodic else widths
            for periodic, widths in zip(self.periods, self.widths, strict=True)
        ]
        self.is_saved_with_halo = bool(random.integers(3))
        shape = [
            n + extra + sum(edge)
            for n, extra, edge in zip(cells, self.extra, self.edges, strict=True)
        ]
        self.extended = random_array(random, (*self.lead, *shape), random.choice(TYPES))

    @property
    def whole(self):
        inner = tuple(
            slice(low, size - high)
            for size, (low, high) in zip(
                self.extended.shape[len(self.lead) :], self.edges, strict=True
            )
        )
        return self.extended[(..., *inner)]

    def halo(self):
        grid = GRIDS[self.periods]
        return halo.Plan(grid, self.widths, shape=self.cells)

    def layout(self, random):
        axes = random.permutation(self.whole.ndim)[: random.integers(1, 3)]
        grid = GRIDS[(False,) * len(axes)]
        return pencil.Layout(grid, self.whole.shape, axes)

    def part(self, plan, *, has_edges):
        """The part of a halo plan, and whether each point is an own one or at an edge."""
        indices, are_own, grid = [], [], GRIDS[self.periods]
        for n, (cells, extra, (low, high)) in enumerate(
            zip(self.cells, self.extra, self.widths, strict=True)
        ):
            coordinate, processes = grid.coords[n], grid.dims[n]
            points = np.arange(-low, plan.local_shape[n] + extra + high) + plan.offset[n]
            inside = (points >= 0) & (points < cells + extra)
            is_own = (points >= plan.offset[n]) & (
                points < plan.offset[n] + plan.local_shape[n] + extra
            )
            if self.periods[n]:
                indices.append(points % cells)
            else:
                indices.append(points + low)
                is_own |= ~inside & (coordinate in (0, processes - 1))
            are_own.append(is_own)
        array = self.extended[(..., *np.ix_(*indices))]
        is_own = functools.reduce(np.logical_and.outer, are_own)
        if not has_edges:
            array = array.copy()
            outside = [
                ((p + o - low < 0) | (p + o - low >= cells + extra)) & (not periodic)
                for p, o, cells, extra, (low, _), periodic in zip(
                    map(np.arange, array.shape[len(self.lead) :]),
                    plan.offset,
                    self.cells,
                    self.extra,
                    self.widths,
                    self.periods,
                    strict=True,
                )
            ]
            for n, mask in enumerate(outside):
                index = [slice(None)] * array.ndim
                index[len(self.lead) + n] = mask
                array[tuple(index)] = 0
        return array, is_own

    def saved(self, random):
        if self.is_saved_with_halo:
            plan = self.halo()
            array, is_own = self.part(plan, has_edges=True)
            # Ghosts are not saved, whatever they are.
            return np.where(is_own, array, np.zeros((), array.dtype)), plan
        return self.other(random)

    def other(self, random):
        if random.integers(4) == 0:
            return self.whole, None
        plan = self.layout(random)
        return self.whole[plan.slices], plan

    def loaded(self, random):
        if random.integers(2):
            plan = self.halo()
            return self.part(plan, has_edges=self.is_saved_with_halo)[0], plan
        return self.other(random)


class OfRows:
    """An array of rows, each process with its own number of them."""

    def __init__(self, random):
        self.total = int(random.choice([0, 1, 5, 40, 100]))
        shape = self.total, *map(int, random.integers(0, 3, random.integers(0, 3)))
        self.whole = random_array(random, shape, random.choice(TYPES))

    def counts(self, random):
        bounds = np.sort(random.integers(0, self.total + 1, SIZE - 1))
        return np.diff([0, *bounds, self.total])

    def saved(self, random):
        counts = self.counts(random)
        first = counts[:RANK].sum()
        rows = self.whole[first : first + counts[RANK]]
        if random.integers(2):
            more = np.zeros((2, *rows.shape[1:]), rows.dtype)
            return np.concatenate([rows, more]), files.Rows(int(counts[RANK]))
        return rows, files.Rows()

    def loaded(self, random):
        if random.integers(2):
            counts = self.counts(random)
            first = counts[:RANK].sum()
            rows = self.whole[first : first + counts[RANK]]
            return rows, files.Rows(int(counts[RANK]))
        if random.integers(3) == 0:
            return self.whole, None
        share, rest = divmod(self.total, SIZE)
        first = RANK * share + min(RANK, rest)
        return self.whole[first : first + share + (rest > RANK)], files.Rows()


class OfPoints:
    """An array of the points of an unstructured mesh, with several rows each."""

    def __init__(self, random):
        self.total, self.block = (
            int(random.choice([0, 1, 7, 60])),
            int(random.integers(1, 3)),
        )
        self.ids = np.sort(random.choice(10**6, self.total, replace=False))
        shape = (
            self.total * self.block,
            *map(int, random.integers(1, 3, random.integers(0, 2))),
        )
        self.whole = random_array(random, shape, random.choice(TYPES))

    def plan(self, random):
        owners = random.integers(0, SIZE, self.total)
        if SIZE > 2:
            owners[owners == 1] = 0  # a rank without points of its own
        others = random.integers(0, 4, (SIZE, self.total)) == 0
        points = np.flatnonzero((owners == RANK) | others[RANK])
        points = np.random.default_rng(RANK).permutation(points)
        plan = unstructured.Plan.from_global(
            self.ids[points], owners[points] == RANK, comm=comm
        )
        plan = plan.blocked(self.block) if self.block > 1 else plan
        rows = (points[:, None] * self.block + np.arange(self.block)).reshape(-1)
        return plan, rows

    def saved(self, random):
        plan, rows = self.plan(random)
        array = self.whole[rows]
        array[plan.ghost_rows] = np.zeros((), array.dtype)
        return array, plan

    def loaded(self, random):
        if random.integers(4) == 0:
            return self.whole, None
        plan, rows = self.plan(random)
        return self.whole[rows], plan


class Alike:
    """A value that all processes have."""

    def __init__(self, random):
        shape = tuple(map(int, random.integers(0, 5, random.integers(0, 4))))
        values = [
            None,
            bool(random.integers(2)),
            int(random.integers(10**12)) * 10**12,
            float(random.normal()),
            float(random.choice([np.inf, -np.inf, -0.0])),
            complex(*random.normal(size=2)),
            "text: ü",
            random.normal(size=1).astype(np.float32)[0],
            jax.random.key(int(random.integers(100))),
            jax.random.split(jax.random.key(3, impl="rbg"), 3),
            *(random_array(random, shape, random.choice(TYPES)) for _ in range(5)),
        ]
        self.value = values[random.integers(len(values))]

    def saved(self, random):
        return self.value, None

    loaded = saved


KINDS = (OnGrid, OnGrid, OfRows, OfPoints, Alike, Alike)


def random_tree(random, depth=0):
    """A tree of cases."""
    if depth and (depth > 2 or random.integers(2)):
        return KINDS[random.integers(len(KINDS))](random)
    count = random.integers(0 if depth else 2, 5)
    children = [random_tree(random, depth + 1) for _ in range(count)]
    kind = random.integers(4)
    if kind == 0:
        return children
    if kind == 1:
        return tuple(children)
    keys = ["u", "U", "a b/c", ".", "row_ids"] if kind == 2 else [3, 2.5, 0, -1, 10**20]
    order = random.permutation(len(keys))
    return {keys[n]: child for n, child in zip(order, children, strict=False)}


def as_leaf(random, array):
    """An array of JAX's, or of NumPy's."""
    is_array = isinstance(array, np.ndarray)
    return jnp.asarray(array) if is_array and random.integers(2) else array


class Pair(NamedTuple):
    leaf: object
    plan: object


def is_case(x):
    return isinstance(x, (OnGrid, OfRows, OfPoints, Alike))


def trees(seed, name):
    """The tree of this process, and its plan, as it is saved or loaded."""
    random = np.random.default_rng([11, seed])
    cases = random_tree(random)
    of_types = np.random.default_rng([12, seed])
    of_plans = np.random.default_rng([13, seed, SIZE, name == "load"])

    def made(case):
        array, plan = (case.saved if name == "save" else case.loaded)(of_plans)
        return Pair(as_leaf(of_types, array), plan)

    pairs = jax.tree.map(made, cases, is_leaf=is_case)
    return tuple(
        jax.tree.map(itemgetter(n), pairs, is_leaf=lambda x: type(x) is Pair)
        for n in (0, 1)
    )


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert type(x) is type(y), (type(x), type(y))
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(x) == jax.random.key_impl(y)
            x, y = map(jax.random.key_data, (x, y))
        if hasattr(x, "dtype"):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        else:
            assert repr(x) == repr(y)


def main(name, folder, first, last):
    for seed in range(int(first), int(last)):
        path = f"{folder}/{seed}"
        tree, plan = trees(seed, name)
        chunks = [(7, 5), None, (2, 3, 3)][seed % 3]
        compression = "lz4" if seed % 4 > 1 else None
        try:
            if name == "save":
                saving = files.save(
                    path,
                    tree,
                    plan,
                    chunks=chunks,
                    compression=compression,
                    wait=seed % 2 == 0,
                    comm=comm,
                )
                if saving is not None and seed % 4 == 1:
                    saving.wait()
            else:
                assert_equal(files.load(path, plan, comm=comm), tree)
                if RANK == 0:
                    assert not files.info(path, verify=True).damage
        except Exception:
            print(f"seed {seed} on {SIZE} ranks", flush=True)
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
