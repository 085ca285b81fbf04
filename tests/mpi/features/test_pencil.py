"""Arrays that are divided in other ways, against parts of the whole arrays."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from sample import seeds

from mpi4jax import diagnostics
from mpi4jax._internal.arguments.dtypes import CARRIERS, DATATYPES
from mpi4jax.halo import Plan
from mpi4jax.pencil import Layout

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
LAST = SIZE - 1
ROW = comm.Create_cart([SIZE], [True])

pytestmark = pytest.mark.usefixtures("enable_x64")
TRANSFORMS = {"eager": lambda f: f, "jit": jax.jit}
compiled = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def grids():
    """Communicators of grids with one to three axes."""
    for ndim in range(1, 4):
        yield comm.Create_cart(MPI.Compute_dims(SIZE, ndim), [False] * ndim)


GRIDS = list(grids())


class Case:
    """Two layouts of the same arrays, and fields: whole ones, and their parts in each."""

    def __init__(self, seed):
        random = np.random.default_rng([47, seed])
        grid = GRIDS[seed % len(GRIDS)]
        ndim = random.integers(grid.ndim, 5)
        sizes = [1, 2, 3, 5, 8, 13, SIZE, SIZE + 1] + [0] * (seed % 8 == 0)
        shape = tuple(map(int, random.choice(sizes, ndim)))

        def layout(grid):
            axes = random.permutation(ndim)[: grid.ndim]
            return Layout(grid, shape, [int(axis) for axis in axes])

        self.source = layout(grid)
        others = [grid for grid in GRIDS if grid.ndim <= ndim]
        self.result = layout(others[random.integers(len(others))])
        batch = tuple(map(int, random.integers(1, 3, seed % 3)))
        real, imaginary = random.normal(size=(2, *shape))
        self.whole = {
            "x": random.normal(size=(*batch, *shape)),
            "z": real + 1j * imaginary,
            "number": random.integers(0, 100, shape).astype(np.int32),
            "small": random.normal(size=shape).astype(np.float32),
        }

    def parts(self, layout):
        return {name: x[(..., *layout.slices)] for name, x in self.whole.items()}


def assert_equal(results, expected):
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (results, expected)), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@compiled
@pytest.mark.parametrize("seed", seeds(12))
def test_random_layouts(seed, transform):
    case = Case(seed)
    source, result = case.source, case.result

    def move(fields):
        return source.redistribute(fields, to=result)

    before, after = case.parts(source), case.parts(result)
    moved = transform(move)(before)
    assert_equal(moved, after)
    assert moved["number"].shape == result.local_shape
    assert_equal(result.redistribute(moved, to=source), before)

    root = seed % SIZE
    for layout, parts in ((source, before), (result, after)):
        assert_equal(transform(layout.gather)(parts), case.whole)
        joined = layout.gather(parts, root=root)
        assert_equal(joined, case.whole if root == RANK else None)
        assert_equal(transform(layout.scatter)(case.whole), parts)
        whole = case.whole
        if root != RANK:
            whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), whole)
        assert_equal(layout.scatter(whole, root=root), parts)


@pytest.mark.parametrize("seed", seeds(6))
def test_derivatives(seed):
    """Tangents move as fields do, and cotangents move back."""
    case = Case(seed)
    del case.whole["number"]
    source, result = case.source, case.result
    before, after = case.parts(source), case.parts(result)

    def move(fields):
        return source.redistribute(fields, to=result)

    _, pushed = jax.jvp(move, (jax.tree.map(jnp.zeros_like, before),), (before,))
    assert_equal(pushed, after)
    _, pull = jax.vjp(jax.jit(move), before)
    assert_equal(pull(jax.tree.map(jnp.asarray, after))[0], before)
    # What all processes have is a result that they share.
    whole, pull = jax.vjp(source.gather, before)
    assert_equal(pull(whole)[0], before)


def test_some_fields_have_no_derivatives():
    layout, other = Layout(ROW, (4, 5), [0]), Layout(ROW, (4, 5), [1])
    numbers = np.arange(20).reshape(4, 5)[layout.slices]

    def total(x):
        moved = layout.redistribute({"x": x, "n": numbers}, to=other)
        return jnp.sum(moved["x"] * moved["n"])

    np.testing.assert_array_equal(jax.grad(total)(1.0 * numbers), numbers)


def test_a_batch_travels_along(calls_of):
    layout, other = Layout(ROW, (6, 7), [0]), Layout(ROW, (6, 7), [1])
    whole = np.random.default_rng(1).normal(size=(6, 3, 7))
    part = whole[layout.slices[0]]

    def move(x):
        return layout.redistribute(x, to=other)

    mapped = jax.jit(jax.vmap(move, in_axes=1, out_axes=2))
    result, calls = calls_of(lambda: mapped(part))
    np.testing.assert_array_equal(result, np.moveaxis(whole, 1, 2)[:, other.slices[1]])
    assert calls == Counter(Waitall=1)


def test_in_a_loop():
    """Each step divides along the next axis, and the arrays come back."""
    shape = 3, 4, 5
    layouts = [Layout(ROW, shape, [axis]) for axis in range(3)]
    x = np.arange(60.0).reshape(shape)[layouts[0].slices]

    def step(_, x):
        for layout, to in zip(layouts, layouts[1:] + layouts[:1], strict=True):
            x = layout.redistribute(x, to=to) + 1
        return x

    result = jax.jit(lambda x: jax.lax.fori_loop(0, 4, step, x))(x)
    np.testing.assert_array_equal(result, x + 12)


@compiled
def test_all_types(transform):
    """Each bit arrives."""
    layout, other = Layout(ROW, (SIZE, 3), [0]), Layout(ROW, (SIZE, 3), [1])
    random = np.random.default_rng(0)
    whole = {
        name: jnp.asarray(random.integers(0, 2, (SIZE, 3)).astype(jnp.dtype(name)))
        for name in (*DATATYPES, *CARRIERS)
    }
    parts = {name: x[layout.slices] for name, x in whole.items()}
    moved = transform(lambda x: layout.redistribute(x, to=other))(parts)
    assert_equal(moved, {name: x[other.slices] for name, x in whole.items()})


def test_one_message_for_each_process(calls_of):
    layout, other = Layout(ROW, (8, 9), [0]), Layout(ROW, (8, 9), [1])
    fields = {"x": np.ones(layout.local_shape), "n": np.ones(layout.local_shape, np.int8)}
    move = jax.jit(lambda x: layout.redistribute(x, to=other))
    _, calls = calls_of(lambda: move(fields))
    assert calls == Counter(Waitall=1)


@pytest.mark.parametrize("axes", [[0], [0, 1]], ids=["slabs", "pencils"])
def test_messages_have_the_bytes_that_the_documentation_says(axes):
    """Those with which it estimates the time on a thousand processes."""
    grid = GRIDS[len(axes) - 1]
    layout = Layout(grid, (SIZE, 2 * SIZE, 3 * SIZE), axes)
    redivided = layout.with_axes([*axes[:-1], 2])
    x = np.ones(layout.local_shape)
    with diagnostics.profile(quiet=True) as profile:
        layout.redistribute(x, to=redivided).block_until_ready()
    # The processes along the last axis of the grid.
    line = grid.Sub([n == len(axes) - 1 for n in range(len(axes))])
    traffic = np.zeros(SIZE)
    traffic[line.allgather(RANK)] = x.nbytes // line.Get_size()
    traffic[RANK] = 0
    np.testing.assert_array_equal(profile.traffic[RANK], traffic)


def test_a_plan_for_halos_has_the_same_parts():
    grid = comm.Create_cart(MPI.Compute_dims(SIZE, 2), [False, False])
    shape = SIZE + 2, 2 * SIZE + 1
    plan, layout = Plan(grid, 1, shape=shape), Layout(grid, shape, [0, 1])
    assert plan.local_shape == layout.local_shape
    assert plan.shape == layout.shape
    assert plan.offset == tuple(part.start for part in layout.slices)


def test_other_layouts():
    layout = Layout(ROW, (4, 5), [0])
    assert layout.with_axes([1]).local_shape == Layout(ROW, (4, 5), [1]).local_shape
    assert layout.with_shape((7, 2)).local_shape == Layout(ROW, (7, 2), [0]).local_shape
    assert repr(layout) == f"<pencil.Layout: (4, 5), axes (0,) over ({SIZE},) processes>"


LAYOUT = Layout(ROW, (4, 5), [0])
PART = np.zeros(LAYOUT.local_shape)
REVERSED = comm.Split(0, -RANK).Create_cart([SIZE], [True])
WRONG = {
    "comm": (
        lambda: Layout(1, (4, 5), [0]),
        TypeError,
        "pencil.Layout: `comm` must be a communicator of comm.Create_cart(...)",
    ),
    "grid": (
        lambda: Layout(comm, (4, 5), [0]),
        ValueError,
        "pencil.Layout got a communicator without a grid for argument `comm`",
    ),
    "shape": (
        lambda: Layout(ROW, (4, -5), [0]),
        ValueError,
        "pencil.Layout got (4, -5) for argument `shape`, expected no negative sizes",
    ),
    "axes": (
        lambda: Layout(ROW, (4, 5), [2]),
        ValueError,
        "pencil.Layout got [2] for argument `axes`, expected a different one of the 2 axes "
        "of `shape` for each of the 1 axes of the grid of processes",
    ),
    "axes_twice": (
        lambda: Layout(ROW, (4, 5), [0, 0]),
        ValueError,
        "pencil.Layout got [0, 0] for argument `axes`, expected a different one",
    ),
    "part": (
        lambda: LAYOUT.redistribute({"u": np.zeros(3)}, to=LAYOUT),
        ValueError,
        "pencil.Layout.redistribute got an array of shape (3,) for `fields['u']`, expected "
        f"{LAYOUT.local_shape} as its last axes",
    ),
    "whole": (
        lambda: LAYOUT.scatter(np.zeros((4, 6))),
        ValueError,
        "pencil.Layout.scatter got an array of shape (4, 6) for `fields`, expected (4, 5) "
        "as its last axes",
    ),
    "to": (
        lambda: LAYOUT.redistribute(PART, to=[1]),
        TypeError,
        "pencil.Layout.redistribute: `to` must be a pencil.Layout",
    ),
    "other_shape": (
        lambda: LAYOUT.redistribute(PART, to=Layout(ROW, (5, 4), [0])),
        ValueError,
        "pencil.Layout.redistribute got a layout of shape (5, 4) for argument `to`, "
        "expected one of the shape of this layout, (4, 5)",
    ),
    "root": (
        lambda: LAYOUT.gather(PART, root=SIZE),
        ValueError,
        f"pencil.Layout.gather got {SIZE} for argument `root`",
    ),
    "freed": (
        lambda: freed().gather(PART),
        ValueError,
        "pencil.Layout.gather got a plan whose communicator was freed",
    ),
}


def freed():
    grid = comm.Create_cart([SIZE], [True])
    layout = Layout(grid, (4, 5), [0])
    grid.Free()
    return layout


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    function, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        function()
    assert text in str(caught.value)


@pytest.mark.ranks(2)
def test_other_processes():
    other = Layout(REVERSED, (4, 5), [0])
    with pytest.raises(ValueError, match="got a layout of other processes for argument"):
        LAYOUT.redistribute(PART, to=other)
