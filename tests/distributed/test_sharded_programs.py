"""Random programs on meshes: our operations, JAX's collectives, loops, branches, gradients.

Each is a function of three arrays, of which each process has a row. It is also written for
the rows of all processes in NumPy, on complex numbers: a derivative is the imaginary part
that a small imaginary step gives (the complex-step method), which takes nothing from JAX.

A seed makes the program, which a failure prints. More of them, here the seeds 100 to 599:

    TEST_SEEDS=100:600 mpiexec -n 3 python -P -m pytest \
        --rootdir tests/distributed tests/distributed/test_sharded_programs.py
"""

import functools
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI
from sample import seeds
from steps import (
    ALL,
    CONSTANT,
    IN_FLIGHT,
    OF_VARYING,
    SAME,
    Choices,
    Group,
    axes_of,
    meshes,
)

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs, vary

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
OTHER = COMM.Dup()

SEEDS = seeds(48)
SHAPES = [(), (1,), (3,), (8,), (2, 3), (3, 1)]
if jax.__version_info__ < (0, 12):  # whose XLA aborts in its pass for empty arrays
    SHAPES += [(0,), (2, 0)]
REGISTERS = 3
#: What is computed of a program. In that of values, a step may be a gradient.
MODES = ["values", "values", "gradient", "gradient", "tangent", "pullbacks", "second"]
IMAGINARY_STEP, REAL_STEP = 1e-30, 2e-6
TOLERANCES = {"float64": 1e-9, "float32": 5e-3}

pytestmark = [
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1"),
]


class Writer:
    """Makes up a program on the rows of all processes, and what NumPy makes of them.

    Each part of it is two functions of the loops' turn and of a list of arrays, like an
    operation's. In a `shard_map` the arrays are a process's rows, outside of it whole.
    """

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.mode = self.choose.choice(MODES)
        self.dtype = self.choose.choice(["float64"] * 4 + ["float32"])
        if self.mode == "second":
            self.dtype = "float64"
        self.is_checked = self.choose.random() < 0.5
        self.mesh, self.order = self.choose.choice(meshes())
        self.shape = self.choose.choice(SHAPES)
        if 0 in self.shape:
            # JAX and XLA have bugs of their own in derivatives with respect to nothing.
            self.mode = "values"
        self.may_differentiate = self.mode == "values" and 0 not in self.shape
        self.lines = [
            f"{self.mode}, {self.dtype}{list(self.shape)}, check_vma={self.is_checked}, "
            f"{dict(self.mesh.shape)} of processes {self.order.tolist()}"
        ]
        self.is_inside = self.is_mapped = False
        self.left = self.choose.randint(3, 8)
        self.run, self.expect = self.sequence(self.shape, depth=0, count=3)

    def note(self, depth, text):
        self.lines.append("|  " * (depth + 1) + text)

    # What a program consists of.

    def sequence(self, shape, depth, count):
        """Some parts, one after the other."""
        parts = [self.part(shape, depth) for k in range(count) if k == 0 or self.left > 0]

        def run(turn, arrays):
            for run, _ in parts:
                arrays = run(turn, arrays)
            return arrays

        def expect(turn, arrays):
            for _, expect in parts:
                arrays = expect(turn, arrays)
            return arrays

        return run, expect

    def part(self, shape, depth):
        kinds = [self.call] * 6 + [self.compute] if self.is_inside else [self.shard_map] * 4
        if not self.is_inside:
            kinds += [self.compute_outside]
        if depth < 3:
            kinds += self.structures(shape)
        return self.choose.choice(kinds)(shape, depth)

    def structures(self, shape):
        kinds = [self.fori_loop, self.scan, self.cond, self.remat, self.jit]
        if self.mode == "values":
            kinds += [self.while_loop]
        if self.may_differentiate and self.is_inside and len(shape) < 2:
            kinds += [self.gradient] * 4
        if shape and shape[0] > 0:
            kinds += [self.vmap]
        return kinds

    def inner(self, shape, depth):
        return self.sequence(shape, depth + 1, self.choose.randint(1, 3))

    def random_group(self, is_whole=False):
        axes, members = self.choose.choice(axes_of(self.mesh)[: 1 if is_whole else None])
        comm = mpi4jax.axis_comm(self.mesh, axes)
        is_in_order = np.all(self.order == np.arange(SIZE))
        if axes == self.mesh.axis_names and is_in_order:
            comm = self.choose.choice([None, OTHER, comm])
        return Group(self.mesh, axes, members, comm)

    def operation(self, names, shape, depth, is_whole=False):
        """A call along some axes, which each process does with its own arrays."""
        if self.is_mapped:  # where they may have no ranks that the program computes
            names = [name for name in names if name not in IN_FLIGHT]
        name, group = self.choose.choice(names), self.random_group(is_whole)
        self.left -= 1
        self.note(depth, f"{name} along {', '.join(group.axes)}")
        note = functools.partial(self.note, depth + 1)
        choices = Choices(self.choose, self.numbers, group, self.dtype, shape, note)
        run, expect_of_group = ALL[name](choices)

        def run_step(turn, x, y):
            if name in CONSTANT:
                x, y = lax.stop_gradient((x, y))
            if name in OF_VARYING:
                x = self.vary(x)
            return run(turn, x, y)

        def expect(turn, x, y):
            if name in CONSTANT:
                x, y = x.real, y.real
            result = np.empty(x.shape, complex)
            for members in group.members:
                result[members] = expect_of_group(turn, x[members], y[members])
            return result

        return run_step, expect

    def vary(self, x):
        """What JAX takes for the same on all processes may become a loop's variable."""
        return vary(x, self.mesh.axis_names) if self.is_checked else x

    # Steps inside of a shard_map.

    def call(self, shape, depth):
        """One operation, or one of the result of another."""
        x, y, target = (self.choose.randrange(REGISTERS) for _ in range(3))
        # Differences between values, for second derivatives, are not those of constants.
        names = [name for name in ALL if self.mode != "second" or name not in CONSTANT]
        first, second = self.operation(names, shape, depth), None
        if self.choose.random() < 0.3:
            second = self.operation(names, shape, depth)

        def combined(index, turn, arrays):
            result = first[index](turn, arrays[x], arrays[y])
            if second:
                result = second[index](turn, result, arrays[target])
            return 0.5 * arrays[target] + result

        def run(turn, arrays):
            return replaced(arrays, target, self.vary(combined(0, turn, arrays)))

        def expect(turn, arrays):
            return replaced(arrays, target, combined(1, turn, arrays))

        return run, expect

    def compute(self, shape, depth):
        """Something of a process's own, or a branch of its own."""
        x, y, target = (self.choose.randrange(REGISTERS) for _ in range(3))
        ranks = np.arange(SIZE).reshape(-1, *(1,) * len(shape))
        if self.choose.random() < 0.5:
            self.note(depth, "branch of a rank's own")

            def run(turn, arrays):
                rank = lax.axis_index(self.mesh.axis_names)
                new = lax.cond(rank % 2 == 0, jnp.sin, jnp.cos, arrays[x])
                return replaced(arrays, target, new)

            def expect(turn, arrays):
                new = np.where(ranks % 2 == 0, np.sin(arrays[x]), np.cos(arrays[x]))
                return replaced(arrays, target, new)

            return run, expect
        self.note(depth, "arithmetic")

        def arithmetic(library, rank, arrays):
            product = library.tanh(arrays[x] * arrays[y])
            return replaced(arrays, target, product + arrays[target] * (rank + 1) / 8)

        axes = self.mesh.axis_names
        return (
            lambda turn, arrays: arithmetic(jnp, lax.axis_index(axes), arrays),
            lambda turn, arrays: arithmetic(np, ranks, arrays),
        )

    # Steps outside of it.

    def shard_map(self, shape, depth):
        self.note(depth, "shard_map")
        self.is_inside = True
        inner_run, inner_expect = self.inner(shape, depth)
        # One more result, which is the same on all processes.
        last = self.operation(list(SAME), shape, depth + 1, is_whole=True)
        self.is_inside = False
        rows = P(self.mesh.axis_names)

        def body(turn, *arrays):
            arrays = inner_run(turn, [x[0] for x in arrays])
            same = last[0](turn, *arrays[:2])
            return [x[None] for x in arrays], same

        def run(turn, arrays):
            specs = {"in_specs": (P(), *[rows] * REGISTERS), "mesh": self.mesh}
            specs["out_specs"] = [rows] * REGISTERS, P()
            mapped = jax.shard_map(body, check_vma=self.is_checked, **specs)
            arrays, same = mapped(turn, *arrays)
            return replaced(arrays, 2, arrays[2] - 0.5 * same)

        def expect(turn, arrays):
            arrays = inner_expect(turn, arrays)
            same = last[1](turn, *arrays[:2])[0]
            return replaced(arrays, 2, arrays[2] - 0.5 * same)

        return run, expect

    def compute_outside(self, shape, depth):
        """What XLA divides among the processes."""
        x, target = (self.choose.randrange(REGISTERS) for _ in range(2))
        matrix = self.numbers.uniform(-1, 1, (SIZE, SIZE)).astype(self.dtype)
        name, function = self.choose.choice(
            [
                ("mean", lambda library, x: x * x.mean(0)),
                ("roll", lambda library, x: library.roll(x, 1, 0)),
                (
                    "matrix product",
                    lambda library, x: library.tensordot(matrix, x, 1) / SIZE,
                ),
                ("sum", lambda library, x: library.tanh(x.sum()) + x),
                ("reversal", lambda library, x: library.sin(x[::-1])),
            ]
        )
        self.note(depth, name)

        def step(library, arrays):
            new = 0.5 * arrays[target] + function(library, arrays[x])
            return replaced(arrays, target, new)

        return (
            lambda turn, arrays: step(jnp, arrays),
            lambda turn, arrays: step(np, arrays),
        )

    # Structure, inside and outside.

    def fori_loop(self, shape, depth):
        trips = self.choose.randint(1, 3)
        self.note(depth, f"fori_loop of {trips}")
        inner_run, inner_expect = self.inner(shape, depth)

        def run(turn, arrays):
            return lax.fori_loop(0, trips, lambda k, xs: inner_run(turn + k, xs), arrays)

        return run, repeated(inner_expect, trips)

    def scan(self, shape, depth):
        trips, is_reversed = self.choose.randint(1, 3), self.choose.random() < 0.5
        unroll = self.choose.randint(1, 2)
        self.note(depth, f"scan of {trips}, reverse={is_reversed}, unroll={unroll}")
        inner_run, inner_expect = self.inner(shape, depth)
        options = {"reverse": is_reversed, "unroll": unroll}

        def run(turn, arrays):
            def step(arrays, turn):
                arrays = inner_run(turn, arrays)
                return arrays, arrays[0]

            turns = turn + jnp.arange(trips)
            arrays, seen = lax.scan(step, arrays, turns, **options)
            return replaced(arrays, 2, arrays[2] + seen.mean(0))

        def expect(turn, arrays):
            seen = 0
            for k in range(trips)[:: -1 if is_reversed else 1]:
                arrays = inner_expect(turn + k, arrays)
                seen = seen + arrays[0]
            return replaced(arrays, 2, arrays[2] + seen / trips)

        return run, expect

    def while_loop(self, shape, depth):
        """With a call in the condition, if that is possible."""
        trips, is_ours = self.choose.randint(1, 3), self.choose.random() < 0.5
        calls = self.is_inside
        group = self.random_group(is_whole=True)
        self.note(depth, f"while_loop of {trips}, ours={is_ours}")
        inner_run, inner_expect = self.inner(shape, depth)

        def run(turn, arrays):
            def proceeds(state):
                k, _ = state
                if not calls:
                    return k < trips
                if is_ours:
                    return mpi.allreduce(k, MPI.SUM, comm=group.comm) < trips * SIZE
                return lax.psum(k, group.axes) < trips * SIZE

            def step(state):
                k, arrays = state
                return k + 1, inner_run(turn + k, arrays)

            return lax.while_loop(proceeds, step, (jnp.int32(0), arrays))[1]

        return run, repeated(inner_expect, trips)

    def cond(self, shape, depth):
        """By the turn, or by a sum over all processes, which in float32 may be inexact."""
        kinds = ["turn", "ours", "psum"] if self.is_inside else ["turn", "sum"]
        kind = self.choose.choice(kinds) if self.dtype == "float64" else "turn"
        limit, group = self.choose.uniform(-1, 1), self.random_group(is_whole=True)
        self.note(depth, f"cond by {kind}")
        run_if, expect_if = self.inner(shape, depth)
        self.note(depth, "or else")
        run_else, expect_else = self.inner(shape, depth)

        def predicate(turn, arrays):
            own = jnp.sum(arrays[0])
            return {
                "turn": lambda: turn % 2 == 0,
                "ours": lambda: mpi.allreduce(own, MPI.SUM, comm=group.comm) > limit,
                "psum": lambda: lax.psum(own, group.axes) > limit,
                "sum": lambda: own > limit,
            }[kind]()

        def run(turn, arrays):
            branches = functools.partial(run_if, turn), functools.partial(run_else, turn)
            return lax.cond(predicate(turn, arrays), *branches, arrays)

        def expect(turn, arrays):
            is_true = turn % 2 == 0 if kind == "turn" else arrays[0].real.sum() > limit
            return (expect_if if is_true else expect_else)(turn, arrays)

        return run, expect

    def remat(self, shape, depth):
        self.note(depth, "checkpoint")
        run, expect = self.inner(shape, depth)
        return jax.checkpoint(run), expect

    def jit(self, shape, depth):
        self.note(depth, "jit")
        run, expect = self.inner(shape, depth)
        return jax.jit(run), expect

    def vmap(self, shape, depth):
        """Over the first axis of a row, with a turn for each or for all."""
        has_turns, axis = self.choose.random() < 0.5, 0 if self.is_inside else 1
        self.note(depth, f"vmap of {shape[0]}, turns={has_turns}")
        was_mapped, self.is_mapped = self.is_mapped, True
        inner_run, inner_expect = self.inner(shape[1:], depth)
        self.is_mapped = was_mapped

        def run(turn, arrays):
            turns = turn + jnp.arange(shape[0]) if has_turns else turn
            axes = (0 if has_turns else None), axis
            return jax.vmap(inner_run, axes, axis)(turns, arrays)

        def expect(turn, arrays):
            parts = [
                inner_expect(turn + k * has_turns, [x[:, k] for x in arrays])
                for k in range(shape[0])
            ]
            return [np.stack(xs, 1) for xs in zip(*parts, strict=True)]

        return run, expect

    def gradient(self, shape, depth):
        """Of losses that all processes have, each with weights of its own."""
        self.note(depth, "gradient")
        self.may_differentiate = False
        mode, self.mode = self.mode, "gradient"
        inner_run, inner_expect = self.inner(shape, depth)
        self.may_differentiate, self.mode = True, mode
        weights = self.random_rows(shape)

        def run(turn, arrays):
            rank = lax.axis_index(self.mesh.axis_names)

            def loss(arrays):
                own = [jnp.asarray(w)[rank] for w in weights]
                return weighted(inner_run(turn, arrays), own)

            return jax.grad(loss)(arrays)

        def expect(turn, arrays):
            return gradient_of(
                lambda arrays: weighted(inner_expect(turn, arrays), weights), arrays
            )

        return run, expect

    def random_rows(self, shape):
        """An array of the rows of all processes for each variable."""
        shapes = (REGISTERS, SIZE, *shape)
        return list(self.numbers.uniform(-1, 1, shapes).astype(self.dtype))


def repeated(expect, trips):
    def call(turn, arrays):
        for k in range(trips):
            arrays = expect(turn + k, arrays)
        return arrays

    return call


def replaced(arrays, target, array):
    return [*arrays[:target], array, *arrays[target + 1 :]]


def weighted(arrays, weights):
    return sum((x * w).sum() for x, w in zip(arrays, weights, strict=True))


def tangent_of(function, arrays, directions):
    """The results' derivatives, by the complex step."""
    pairs = zip(arrays, directions, strict=True)
    return [
        y.imag / IMAGINARY_STEP
        for y in function([x + 1j * IMAGINARY_STEP * v for x, v in pairs])
    ]


def gradient_of(function, arrays, rows=slice(None)):
    """That of a number, with respect to some rows. Others are zero."""
    gradient = [np.zeros(x.shape) for x in arrays]
    for k, x in enumerate(arrays):
        for index in np.ndindex(x.shape):
            if index[0] in range(SIZE)[rows]:
                moved = x.astype(complex)
                moved[index] += 1j * IMAGINARY_STEP
                value = function(replaced(arrays, k, moved))
                gradient[k][index] = value.imag / IMAGINARY_STEP
    return gradient


def what_is_computed(writer, turn):
    """The function that is compiled, and what it gives for rows in NumPy, by the mode."""
    cotangents, others, directions = (writer.random_rows(writer.shape) for _ in range(3))
    own = writer.order.tolist().index(RANK)
    pushed = list(map(jnp.asarray, directions))

    def loss(arrays, turn):
        return weighted(writer.run(turn, arrays), cotangents)

    def expected_gradient(arrays, cotangents=cotangents):
        return gradient_of(
            lambda xs: weighted(writer.expect(turn, xs), cotangents),
            arrays,
            slice(own, own + 1),
        )

    def pullbacks(arrays, turn):
        _, pull = jax.vjp(lambda arrays: writer.run(turn, arrays), arrays)
        pairs = zip(cotangents, others, strict=True)
        (both,) = jax.vmap(pull)([jnp.stack(pair) for pair in pairs])
        return [x[0] + 2 * x[1] for x in both]

    def tangent(arrays, turn):
        return jax.jvp(lambda arrays: writer.run(turn, arrays), (arrays,), (pushed,))[1]

    def second(arrays, turn):
        return jax.jvp(lambda xs: jax.grad(loss)(xs, turn), (arrays,), (pushed,))[1]

    def difference(arrays, steps):
        ends = []
        for step in (steps, -steps):
            pairs = zip(arrays, directions, strict=True)
            ends.append(expected_gradient([x + step * REAL_STEP * v for x, v in pairs]))
        return [(x - y) / (2 * steps * REAL_STEP) for x, y in zip(*ends, strict=True)]

    def expected_second(arrays):
        # Without their error of second order, which is large where derivatives grow.
        near, far = (difference(arrays, steps) for steps in (1, 2))
        return [(4 * x - y) / 3 for x, y in zip(near, far, strict=True)]

    return {
        "values": (
            lambda arrays, turn: writer.run(turn, arrays),
            lambda arrays: writer.expect(turn, arrays),
        ),
        "gradient": (jax.grad(loss), expected_gradient),
        "tangent": (
            tangent,
            lambda arrays: tangent_of(
                lambda arrays: writer.expect(turn, arrays), arrays, directions
            ),
        ),
        "pullbacks": (
            pullbacks,
            lambda arrays: expected_gradient(
                arrays, [x + 2 * y for x, y in zip(cotangents, others, strict=True)]
            ),
        ),
        "second": (second, expected_second),
    }[writer.mode]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed, spread, assert_is, skip_what_xla_refuses):
    writer = Writer(seed)
    arrays, turn = writer.random_rows(writer.shape), writer.choose.randrange(3)
    is_donated = writer.choose.random() < 0.5
    print(f"seed {seed}, turn {turn}, donated={is_donated}", *writer.lines, sep="\n")
    function, expect = what_is_computed(writer, turn)
    program = jax.jit(
        function,
        donate_argnums=(0,) if is_donated else (),
        out_shardings=NamedSharding(writer.mesh, P(writer.mesh.axis_names)),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        calls = [
            (
                [spread(x, writer.mesh, writer.mesh.axis_names) for x in arrays],
                jnp.int32(turn),
            )
            for _ in range(2)
        ]
        skip_what_xla_refuses(program, *calls[0])
        # Both are on the way at the same time.
        results = [program(*arguments) for arguments in calls]
    expected = expect([x.astype(float) for x in arrays])
    tolerance = 1e-6 if writer.mode == "second" else TOLERANCES[writer.dtype]
    for result in results:
        for actual, x in zip(result, expected, strict=True):
            assert_is(actual, x.real.astype(writer.dtype), rtol=tolerance, atol=tolerance)
