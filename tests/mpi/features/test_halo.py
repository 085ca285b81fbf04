"""Halo exchange: on every grid of processes as on one process."""

import functools
import inspect
import re
import sys
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
from mpi4jax import diagnostics
from mpi4jax._internal.blocks import copies
from mpi4jax._internal.mpi import device
from mpi4jax._internal.operations import _alone
from mpi4jax._internal.whole import _narrowed
from mpi4jax.halo import Plan

world = MPI.COMM_WORLD
RANK, SIZE = world.Get_rank(), world.Get_size()

pytestmark = pytest.mark.usefixtures("enable_x64")

#: The cells of a grid that no number of processes up to 6 divides evenly.
SHAPE = (13, 16)
GRIDS = [
    pytest.param(periods, width, id=f"{periods}-{width}")
    for periods, width in (
        ((True, True), 1),
        ((False, True), ((1, 2), (2, 0))),
        ((False, False), ((1, 0), (0, 2))),
    )
]
on_every_grid = pytest.mark.parametrize(("periods", "width"), GRIDS)


@functools.cache
def grid(periods):
    return world.Create_cart(MPI.Compute_dims(SIZE, len(periods)), periods)


def whole_fields(periods):
    """Fields of the whole grid: of several types, with more axes, and on faces."""
    generator = np.random.default_rng(0)
    faces = tuple(n + (not p) for n, p in zip(SHAPE, periods, strict=True))
    return {
        "cells": generator.normal(size=SHAPE),
        "layers": generator.normal(size=(3, *SHAPE)).astype(np.float32),
        "faces": [
            generator.normal(size=(faces[0], SHAPE[1])),
            generator.normal(size=faces),
        ],
        "mask": generator.integers(0, 2, SHAPE).astype(bool),
        "waves": generator.normal(size=SHAPE) + 1j * generator.normal(size=SHAPE),
        "numbers": generator.integers(0, 99, (SHAPE[0], faces[1])).astype(np.int16),
    }


def assert_equal(result, expected):
    def check(path, x, y):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=str(path))

    jax.tree_util.tree_map_with_path(check, result, expected)


def own_points(plan, x):
    """Where the own points of a part are."""
    index = [slice(None)] * x.ndim
    for axis, (lower, upper) in zip(plan.axes, plan.widths, strict=True):
        index[axis] = slice(lower, x.shape[axis] - upper)
    return tuple(index)


def without_ghosts(plan, fields):
    """The fields with zeros for all ghost cells."""

    def clear(x):
        own = own_points(plan, x)
        return jnp.zeros_like(x).at[own].set(x[own])

    return jax.tree.map(clear, fields)


@on_every_grid
def test_parts_are_cut_and_put_together(periods, width):
    plan = Plan(grid(periods), width, shape=SHAPE)
    whole = whole_fields(periods)
    parts = plan.scatter(whole)
    for root in {0, SIZE - 1}:
        types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), whole)
        fields = whole if root == RANK else types
        assert_equal(plan.scatter(fields, root=root), parts)
        gathered = plan.gather(parts, root=root)
        if root == RANK:
            assert_equal(gathered, whole)
        else:
            assert gathered is None
    assert_equal(plan.gather(parts), whole)
    assert plan.without_ghosts(parts)["cells"].shape == plan.local_shape
    assert plan.shape == SHAPE
    starts_and_sizes = zip(plan.offset, plan.local_shape, strict=True)
    own = tuple(slice(start, start + size) for start, size in starts_and_sizes)
    assert_equal(plan.without_ghosts(parts)["layers"], whole["layers"][(slice(None), *own)])


def test_cells_of_an_unknown_grid():
    with pytest.raises(ValueError, match=r"halo.Plan.shape has to know how many cells"):
        _ = Plan(grid((False, False))).shape


@on_every_grid
def test_ghost_cells_are_those_of_the_whole_field(periods, width):
    plan = Plan(grid(periods), width, shape=SHAPE)
    parts = plan.scatter(whole_fields(periods))
    # Scatter, too, has zeros where there are no cells.
    cleared = without_ghosts(plan, parts)
    assert_equal(jax.jit(plan.exchange)(cleared), parts)
    assert_equal(plan.exchange(cleared), parts)


@on_every_grid
@pytest.mark.parametrize("corners", [True, False])
def test_both_ways_give_the_same(periods, width, corners, monkeypatch):
    """The core's copies, and XLA's: on GPUs, and where the core can't add a type."""
    plan = Plan(grid(periods), width, shape=SHAPE, corners=corners)
    # Ghost cells at the edges are passed on along the other axes.
    fields = plan.scatter(whole_fields(periods), fill_value=3)
    fields["z"] = 2 * fields["cells"] + RANK  # behind arrays of other types

    def alone(function, fields):
        return jax.jit(lambda fields: function(fields))(fields)

    def in_a_map(function, fields):
        stack = jax.tree.map(lambda x: jnp.stack([x, x], -1), fields)
        mapped = jax.jit(jax.vmap(function, in_axes=-1, out_axes=-1))
        return jax.tree.map(lambda x: x[..., 1], mapped(stack))

    def by_xla(call, function, fields):
        with monkeypatch.context() as patch:
            patch.setattr(copies, "runs_in_core", lambda *_, **__: False)
            return call(function, fields)

    def check(function, fields):
        expected = alone(function, fields)
        assert_equal(in_a_map(function, fields), expected)
        assert_equal(by_xla(alone, function, fields), expected)
        return expected

    filled = check(plan.exchange, fields)
    # The core adds floats, and XLA integers and what is with them.
    floats = {name: fields[name] for name in ("cells", "faces", "waves", "layers")}
    accumulated = check(plan.accumulate, floats)
    others = {name: fields[name] for name in ("mask", "numbers")}
    rounded = jax.jit(plan.accumulate)(jax.tree.map(jnp.float32, others))
    expected = jax.tree.map(lambda x, y: x.astype(y.dtype), rounded, others)
    others["cells"], expected["cells"] = fields["cells"], accumulated["cells"]
    assert_equal(jax.jit(plan.accumulate)(others), expected)
    overlapped = mpi4jax.overlap(lambda: plan.exchange(fields), during=lambda: 0)[0]
    assert_equal(overlapped, filled)
    # Arrays of batches are cut and joined along other axes.
    some = {"cells": fields["cells"], "layers": fields["layers"]}
    for function in (plan.exchange, plan.accumulate):
        assert_equal(by_xla(in_a_map, function, some), alone(function, some))


#: How many neighbors there are along each axis of a periodic grid that is divided.
NEIGHBORS = [min(n, 3) - 1 for n in MPI.Compute_dims(SIZE, 2) if n > 1]
#: Along how many axes it is.
DIVIDED = len(NEIGHBORS)


def test_who_copies(monkeypatch):
    monkeypatch.setattr(device, "prepare", lambda _: None)  # there may be none
    plan = Plan(grid((True, True)))

    def handlers(platform, dtype, function=plan.exchange):
        traced = jax.jit(function).trace([jnp.ones((5, 6), dtype)] * 3)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        # On GPUs, `order` makes a byte of the token, and the other way round.
        return [name for name in re.findall(r"mpi_(\w+)_ffi", text) if name != "order"]

    # The core copies, in the calls that exchange messages if there are any.
    exchanges = ["exchange"] * DIVIDED
    assert handlers("cpu", "float32") == (exchanges or ["copy"])
    assert handlers("cpu", "int4") == handlers("cuda", "float32") == exchanges
    back = exchanges or ["copy_transposed"]
    assert handlers("cpu", "complex64", plan.accumulate) == back
    assert handlers("cuda", "complex64", plan.accumulate) == exchanges
    assert "copy_transposed" not in handlers("cpu", "int32", plan.accumulate)

    def pulled(fields):
        return jax.linear_transpose(plan.exchange, fields)(fields)

    assert handlers("cpu", "float32", pulled) == back


@pytest.mark.skipif(SIZE == 1, reason="no messages")
def test_calls_have_the_line_of_the_user():
    plan = Plan(grid((True, True)))
    exchange = jax.jit(lambda x: plan.exchange(x))  # this line
    jax.block_until_ready(exchange(jnp.ones((5, 6))))
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    expected = next(n for n, line in enumerate(lines, 1) if "# this line" in line)
    last = diagnostics.recent()[-1]
    assert last.operation == "exchange"
    assert f"test_halo.py:{expected} in" in last.line


@on_every_grid
@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("op", [MPI.MAX, MPI.MIN], ids=["max", "min"])
def test_extrema_of_ghosts(periods, width, corners, op):
    """Each cell gets the extremum of all its copies, and ghost cells become zero."""
    plan = Plan(grid(periods), width, shape=SHAPE, corners=corners)
    shape = plan.scatter(np.zeros(SHAPE)).shape
    count = world.allreduce(int(np.prod(shape)), op=MPI.MAX)
    own_ids = RANK * count + np.arange(np.prod(shape)).reshape(shape)
    ids = np.asarray(plan.exchange(own_ids))
    # Ghost cells beyond the grid belong to this process, too.
    is_own = ids == own_ids
    fields = [np.random.default_rng(RANK).normal(size=(2, *shape))]
    fields.append(fields[0][0].round(1).astype(np.float32))
    function = functools.partial(plan.accumulate, op=op)
    extreme, neutral = (np.maximum, -np.inf) if op == MPI.MAX else (np.minimum, np.inf)
    for x, actual, jitted in zip(
        fields, function(fields), jax.jit(function)(fields), strict=True
    ):
        whole = np.full((SIZE * count, *x.shape[:-2]), neutral)
        for indices, values in world.allgather((ids, x)):
            extreme.at(whole, indices, np.moveaxis(values, (-2, -1), (0, 1)))
        expected = np.moveaxis(whole[ids], (0, 1), (-2, -1)) * is_own
        assert_equal(actual, expected)
        assert_equal(jitted, expected)

    def check_transpose(x, tangent, cotangent):
        _, pushed = jax.jvp(function, (x,), (tangent,))
        (pulled,) = jax.vjp(function, x)[1](cotangent)
        sums = [float((a * b).sum()) for a, b in ((pushed, cotangent), (tangent, pulled))]
        np.testing.assert_allclose(*world.allreduce(np.array(sums)), rtol=1e-9)

    x = jnp.asarray(fields[0][0])
    # Also where several copies attain the extremum.
    check_transpose(x.round(1), jnp.sin(x), jnp.cos(x))


@on_every_grid
@pytest.mark.parametrize("corners", [True, False])
def test_start_and_finish(periods, width, corners):
    plan = Plan(grid(periods), width, shape=SHAPE, corners=corners)
    parts = plan.scatter(whole_fields(periods))
    parts = jax.tree.map(lambda x: x + jnp.ones((), x.dtype) * (RANK % 2), parts)
    expected = plan.exchange(parts)

    def started(fields):
        request = plan.start(fields)
        total = sum(jnp.sum(x).real.astype(float) for x in jax.tree.leaves(fields))
        return plan.finish(request), total

    for function in (started, jax.jit(started)):
        assert_equal(function(parts)[0], expected)
    x = parts["cells"]
    (pulled,) = jax.vjp(lambda x: started(x)[0], x)[1](x)
    assert_equal(pulled, plan.accumulate(x))
    assert_equal(
        jax.vmap(lambda x: started(x)[0], 2, 2)(jnp.stack([x, 2 * x], 2)),
        jnp.stack([expected["cells"], 2 * expected["cells"]], 2),
    )


def test_some_fields_are_linear():
    plan = Plan(grid((True, False)))
    x, constant = jnp.arange(30.0).reshape(5, 6) + RANK, jnp.ones((5, 6))
    (back,) = jax.linear_transpose(lambda x: plan.exchange([x, constant])[0], x)(x)
    assert_equal(back, plan.accumulate(x))


def test_derivatives_of_some_fields():
    """Integers have no tangents, and travel in messages of their own."""
    plan = Plan(grid((True, True)))
    x = jnp.arange(30.0).reshape(5, 6) + RANK
    fields = {"count": jnp.ones((5, 6), jnp.int32), "x": x}
    tangents = {"count": np.zeros((5, 6), jax.dtypes.float0), "x": x}
    _, pushed = jax.jvp(plan.exchange, (fields,), (tangents,))
    (pulled,) = jax.vjp(plan.exchange, fields)[1](tangents)
    assert pushed["count"].dtype == pulled["count"].dtype == jax.dtypes.float0
    assert_equal(pushed["x"], plan.exchange(x))
    assert_equal(pulled["x"], plan.accumulate(x))


def test_edges_that_are_not_periodic_stay():
    plan = Plan(grid((False, False)), shape=SHAPE)
    parts = plan.scatter(whole_fields((False, False))["cells"], fill_value=7.0)
    filled = plan.exchange(jnp.where(parts == 7.0, -1.0, parts))
    assert_equal(filled, jnp.where(parts == 7.0, -1.0, parts))


@on_every_grid
def test_without_corners(periods, width):
    plan = Plan(grid(periods), width, shape=SHAPE, corners=False)
    parts = plan.scatter(whole_fields(periods)["cells"])
    filled = plan.exchange(without_ghosts(plan, parts))
    (top, left), own = (lower for lower, _ in plan.widths), own_points(plan, parts)
    rows, columns = own
    for cross in ((slice(None), columns), (rows, slice(None))):
        assert_equal(filled[cross], parts[cross])
    assert not filled[:top, :left].any()


def test_axes_anywhere():
    plan = Plan(grid((True, True)), axes=(2, 0))
    whole = np.random.default_rng(0).normal(size=(12, 2, 12))
    parts = plan.scatter(whole)
    cleared = without_ghosts(plan, parts)
    assert_equal(plan.exchange(cleared), parts)
    mapped = jax.vmap(plan.exchange, in_axes=3, out_axes=3)
    assert_equal(mapped(jnp.stack([cleared, 2 * cleared], 3))[..., 1], 2 * parts)


@pytest.mark.parametrize("name", ["exchange", "accumulate"])
def test_one_message_for_each_neighbor(name, capfd):
    plan = Plan(grid((True, True)))
    function = getattr(plan, name)
    x = jnp.ones((4, 4))
    fields = [x, x.astype(jnp.float32), jnp.ones((3, 5, 4), jnp.int8)]
    jax.block_until_ready(function(fields))
    _alone.set_logging(True)
    try:
        jax.block_until_ready(function(fields))
    finally:
        _alone.set_logging(False)
    expected = NEIGHBORS if name == "exchange" else NEIGHBORS[::-1]
    calls = [line for line in capfd.readouterr().out.splitlines() if "->" in line]
    calls = [line for line in calls if line.startswith(f"r{RANK}")]
    for arrow in ("->", "<-"):
        assert [line.count(arrow) for line in calls] == expected


@on_every_grid
def test_accumulate_is_the_transpose(periods, width):
    corners = width != 1
    plan = Plan(grid(periods), width, shape=SHAPE, corners=corners)
    generator = np.random.default_rng(RANK)
    whole = whole_fields(periods)
    parts = plan.scatter({name: whole[name] for name in ("cells", "layers", "faces")})
    x, y = (
        jax.tree.map(lambda a: jnp.asarray(generator.normal(size=a.shape), a.dtype), parts)
        for _ in range(2)
    )

    def product(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        own = sum(float(jnp.vdot(*map(jnp.float64, pair))) for pair in pairs)
        return world.allreduce(own)

    def close(a, b):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), a, b)

    def doubles(fields):
        return {name: fields[name] for name in ("cells", "faces")}

    there, back = plan.exchange(x), plan.accumulate(y)
    products = [product(*map(doubles, pair)) for pair in ((there, y), (x, back))]
    assert products[0] == pytest.approx(products[1], rel=1e-12)

    @jax.jit
    def derivatives(x, y):
        (pulled,) = jax.vjp(plan.exchange, x)[1](y)
        (pushed,) = jax.vjp(plan.accumulate, y)[1](x)
        return pulled, pushed, jax.jvp(plan.exchange, (x,), (x,))[1]

    close(derivatives(x, y), (back, there, there))


def diffuse(plan, u, steps):
    def step(_, u):
        u = plan.exchange(u)
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].set(inner + 0.2 * (around - 4 * inner))

    return jax.lax.fori_loop(0, steps, step, u)


def test_a_solver_gives_the_same_on_any_number_of_processes():
    alone = MPI.COMM_SELF.Create_cart((1, 1), (False, True))
    whole = whole_fields((False, True))["cells"]
    fields = []
    for comm in (alone, grid((False, True))):
        plan = Plan(comm, shape=SHAPE, corners=False)
        u = jax.jit(functools.partial(diffuse, plan, steps=20))(plan.scatter(whole))
        fields.append(plan.gather(u))
    assert_equal(*fields)


def test_gradients_through_time():
    whole = whole_fields((True, True))["cells"]
    weights = np.random.default_rng(1).normal(size=SHAPE)

    def gradient(comm):
        plan = Plan(comm, shape=SHAPE)

        def loss(u):
            return jnp.sum(
                plan.without_ghosts(diffuse(plan, u, 5)) ** 2 * plan.without_ghosts(parts)
            )

        parts = plan.scatter(weights)
        # What ghost cells contribute is their owners'.
        return plan.gather(jax.jit(jax.grad(loss))(plan.scatter(whole)))

    alone = MPI.COMM_SELF.Create_cart((1, 1), (True, True))
    np.testing.assert_allclose(gradient(grid((True, True))), gradient(alone), 1e-12)


def test_maps_and_derivatives_where_cells_go_one_way():
    """The first process receives nothing, and the last one sends nothing."""
    plan = Plan(grid((False,)), [(1, 0)])
    u = jnp.arange(5.0) + 10 * RANK
    there = plan.exchange(u)
    assert_equal(jax.vmap(plan.exchange)(jnp.stack([u, 2 * u]))[1], 2 * there)
    assert_equal(jax.jvp(plan.exchange, (u,), (u,))[1], there)
    gradient = jax.jit(jax.grad(lambda u: jnp.sum(plan.exchange(u) ** 2)))(u)
    assert_equal(gradient, 2 * plan.accumulate(there))


def test_gradients_of_a_batch_with_a_computation_meanwhile():
    plan = Plan(grid((True, False)))
    u = jnp.sin(jnp.arange(90.0).reshape(3, 5, 6) + RANK)

    def squares(exchange):
        return jax.jit(jax.grad(lambda u: jnp.sum(jax.vmap(exchange)(u) ** 2)))

    def overlapped(u):
        filled, computed = plan.exchange(u, during=jnp.cos)
        return filled * computed

    expected = squares(lambda u: plan.exchange(u) * jnp.cos(u))(u)
    np.testing.assert_allclose(squares(overlapped)(u), expected, 1e-12)


def test_a_whole_field_that_others_have_no_more():
    """Of a field that is not root's, only shape and dtype are used."""
    plan = Plan(world.Create_cart([SIZE], [True]), shape=[2 * SIZE])
    whole, has_field = jnp.arange(2.0 * SIZE), RANK == 0
    if not has_field:
        whole.delete()
    part = plan.scatter(whole, root=0)
    expected = np.arange(2 * RANK - 1, 2 * RANK + 3) % (2 * SIZE)
    np.testing.assert_array_equal(part, expected)


@pytest.fixture
def x32():
    """JAX without 64-bit types, and nobody who was warned of them."""
    jax.config.update("jax_enable_x64", False)
    _narrowed.clear()
    yield
    jax.config.update("jax_enable_x64", True)


def test_64_bits_that_are_lost_are_said_once(x32):
    """By the process that has the field, or the first one."""
    plan = Plan(grid((True, True)), shape=SHAPE)
    whole = {"u": np.ones(SHAPE), "n": np.ones(SHAPE, int), "v": np.ones(SHAPE, np.float32)}
    for root in (SIZE - 1, None):
        _narrowed.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                part = plan.scatter(whole, root=root)
        assert part["u"].dtype == np.float32
        texts = [str(w.message) for w in caught if w.category is UserWarning]
        expected = (
            "halo.Plan.scatter got a float64 array for `fields['u']`, and makes it "
            "float32, as JAX has 64-bit types off. Turn them on at the start of the "
            'program by jax.config.update("jax_enable_x64", True), or by the environment '
            "variable JAX_ENABLE_X64=1, or pass x.astype('float32')"
        )
        assert texts == [expected] * ((root or 0) == RANK)
        assert {w.filename for w in caught} <= {__file__}


def test_nothing_is_said_of_what_is_kept():
    plan = Plan(grid((True, True)), shape=SHAPE)
    _narrowed.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan.scatter(np.ones(SHAPE)).dtype == np.float64


def test_nothing_to_exchange():
    plan = Plan(grid((True, True)), 0)
    x = jnp.ones((3, 3))
    assert_equal(plan.exchange(x), x)
    assert Plan(grid((True, True))).exchange({}) == {}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"comm": 3},
            TypeError,
            r"halo.Plan: `comm` must be .* comm.Create_cart\(.*\), or a .*Mesh, not 3$",
        ),
        (
            {"comm": world},
            ValueError,
            r"expected one that comm.Create_cart\(dims, periods\)",
        ),
        ({"width": -1}, ValueError, "expected a number of ghost cells, not negative, or"),
        ({"width": (1, 2, 3)}, ValueError, "for each of the 2 axes of the communicator"),
        ({"width": 0.5}, TypeError, "halo.Plan: `width` must be an integer, not 0.5$"),
        (
            {"comm": MPI.COMM_NULL},
            ValueError,
            'halo.Plan got a null communicator for argument "comm"',
        ),
        (
            {"axes": (0,)},
            ValueError,
            r"got \[0\] for argument `axes`, expected a number for",
        ),
        ({"axes": (1, 1)}, ValueError, r"got \[1, 1\] for argument `axes`: one twice"),
        ({"shape": (4, 0)}, ValueError, r"expected a number, 1 or more, for each of the 2"),
        ({"shape": 4}, TypeError, "`shape` must be a sequence of integers, not 4$"),
    ],
)
def test_errors_of_plans(arguments, error, text):
    with pytest.raises(error, match=text):
        Plan(**{"comm": grid((True, True)), **arguments})


def test_freed_communicator(calls_of):
    """Each process that uses the plan gets the error, and none waits for the others.

    Before, programs that had run were called, and others used the handle, which stood for
    no communicator or for another one.
    """
    comm = grid((True, True)).Dup()
    plan = Plan(comm, shape=SHAPE)
    x = plan.scatter(jnp.ones(SHAPE))
    plan.exchange(x)  # a program that is known
    # By another object than the plan's.
    MPI.Intracomm(comm).Free()
    uses = {
        "exchange": lambda: plan.exchange(x),
        "accumulate": lambda: plan.accumulate(x),
        "gather": lambda: plan.gather(x),
        "scatter": lambda: plan.scatter(jnp.ones(SHAPE), root=0),
    }

    def refused():
        for name, use in uses.items():
            for transform in (lambda use: use, jax.jit):
                with pytest.raises(
                    ValueError,
                    match=f"halo.Plan.{name} got a plan whose communicator was freed, "
                    "expected one with a valid communicator",
                ):
                    transform(use)()
        with pytest.raises(ValueError, match="exchange got a plan whose communicator"):
            plan.exchange(x, during=lambda x: x)

    assert calls_of(refused) == (None, Counter())


def test_during_is_no_function():
    plan = Plan(grid((True, True)))
    with pytest.raises(
        TypeError,
        match="halo.Plan.exchange: `during` must be a function of the fields, not 3$",
    ):
        plan.exchange(jnp.ones((8, 8)), during=3)


def test_errors_of_fields():
    plan = Plan(grid((True, True)), shape=SHAPE)
    (rows, columns), row_count = plan.local_shape, SHAPE[0]
    for size in (3, rows + 4, 2 * SIZE * row_count):  # the second has two points more
        expected = (
            f"halo.Plan.exchange got an array of shape ({size}, {columns + 2}) for "
            f"`fields['u']`, expected {rows + 2} points along axis -2, or {rows + 3} of a "
            f"staggered field: {rows} cells of this process, with 1 and 1 ghost cells"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
            plan.exchange({"u": jnp.ones((size, columns + 2))})
    for use in (plan.accumulate, plan.gather, plan.without_ghosts):
        with pytest.raises(ValueError, match=f", or {rows + 3} of a staggered field"):
            use(jnp.ones((rows + 4, columns + 2)))
    for size in (row_count - 1, row_count + 2):
        expected = (
            f"halo.Plan.scatter got an array of shape ({size}, {SHAPE[1]}) for `fields`, "
            f"expected {row_count} points along axis -2, or {row_count + 1} of a staggered "
            "field"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
            plan.scatter(jnp.ones((size, SHAPE[1])))
    with pytest.raises(
        ValueError, match=r"array of shape \(3,\) for `fields`, which has no"
    ):
        plan.accumulate(jnp.ones(3))
    with pytest.raises(
        TypeError, match=r"halo.Plan.exchange: `fields\[0\]` must be an array or a numb"
    ):
        plan.exchange(["text"])
    plan = Plan(grid((True, True)), axes=(1, -1))
    with pytest.raises(ValueError, match=r"in which two of the axes \[1, -1\] are one"):
        plan.exchange(jnp.ones((8, 8)))
    plan = Plan(grid((True, True)), 2)
    with pytest.raises(ValueError, match=f"scatter got {SIZE} for argument `root`, expec"):
        plan.scatter(jnp.ones((8, 8)), root=SIZE)
    with pytest.raises(
        ValueError, match="with 1 points of its own .*: too few for the gho"
    ):
        plan.exchange(jnp.ones((5, 8)))
    with pytest.raises(
        ValueError, match=r"gather has to know .* make the plan with shape="
    ):
        plan.gather(jnp.ones((8, 8)))
