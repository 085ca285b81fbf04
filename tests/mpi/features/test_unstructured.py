"""Exchange by index lists, against what the rows of all ranks together give.

A seed makes a partition, fields, and how functions are called, which a failure
prints. More of them, here the seeds 100 to 599:

    TEST_SEEDS=100:600 mpiexec -n 3 python -P -m pytest \
        --rootdir tests/mpi tests/mpi/features/test_unstructured.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from partitions import Partition
from sample import seeds

from mpi4jax import diagnostics
from mpi4jax import notoken as mpi
from mpi4jax.unstructured import Plan

pytestmark = pytest.mark.usefixtures("enable_x64")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1

SEEDS = seeds(24)
DTYPES = "float32 float64 complex64 complex128 int32 bfloat16".split()

several_ranks = pytest.mark.ranks(2)


class Mesh:
    """Points of all ranks, and what an exchange makes of fields of all ranks."""

    def __init__(self, seed):
        self.partition = Partition(seed)
        self.random = self.partition.random
        self.plan = Plan.from_global(*self.partition.arguments(RANK), comm=COMM)
        self.points = [points for points, _ in self.partition.points_of]
        self.owned = COMM.allgather(self.plan.owned)
        #: For each point, the rank and the row of its owner.
        self.owner = {
            point: (rank, row)
            for rank, points in enumerate(self.points)
            for row, point in enumerate(points)
            if self.owned[rank][row]
        }
        self.ghosts = [
            (rank, row, *self.owner[point])
            for rank, points in enumerate(self.points)
            for row, point in enumerate(points)
            if not self.owned[rank][row]
        ]
        #: The points that exist, in the order of their ids.
        self.whole = sorted(self.owner, key=lambda point: int(self.partition.ids[point]))

    def fields(self, inner, dtype):
        """Small integers, which are added without rounding, on all ranks."""
        values = [
            self.random.integers(-8, 9, (len(points), *inner)) for points in self.points
        ]
        if np.issubdtype(jnp.dtype(dtype), np.complexfloating):
            values = [x + 1j * x[..., ::-1] for x in values]
        return [x.astype(jnp.dtype(dtype)) for x in values]

    def exchange(self, fields):
        results = [x.copy() for x in fields]
        for rank, row, owner, other in self.ghosts:
            results[rank][row] = fields[owner][other]
        return results

    def accumulate(self, fields, combine=np.add):
        results = [x.copy() for x in fields]
        for rank, row, owner, other in self.ghosts:
            results[owner][other] = combine(results[owner][other], fields[rank][row])
        for rank, row, _, _ in self.ghosts:
            results[rank][row] = 0
        return results

    def gather(self, fields):
        rows = [fields[rank][row] for rank, row in map(self.owner.get, self.whole)]
        return np.array(rows, fields[0].dtype).reshape(-1, *fields[0].shape[1:])


def assert_trees_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


class Case:
    """A plan with fields, and what its functions give for these.

    Each of the methods that begin with `check` checks some of the functions.
    """

    def __init__(self, seed):
        self.mesh = Mesh(seed)
        self.plan, self.random = self.mesh.plan, self.mesh.random
        self.dtypes = list(map(str, self.random.choice(DTYPES, self.random.integers(1, 4))))
        self.inner = [(), (3,), (2, 3)][self.random.integers(3)]
        self.of_ranks = [self.mesh.fields(self.inner, dtype) for dtype in self.dtypes]
        self.fields = [jnp.asarray(x[RANK]) for x in self.of_ranks]
        self.updated = self.expect(self.mesh.exchange)
        self.accumulated = self.expect(self.mesh.accumulate)
        self.is_jitted = bool(self.random.integers(2))

    def expect(self, function):
        return [jnp.asarray(function(x)[RANK]) for x in self.of_ranks]

    def call(self, function, *arguments):
        return (jax.jit(function) if self.is_jitted else function)(*arguments)

    def check_update(self):
        assert_trees_equal(self.call(self.plan.exchange, self.fields), self.updated)

    def check_accumulate(self):
        assert_trees_equal(self.call(self.plan.accumulate, self.fields), self.accumulated)

    def check_sum_shared(self):
        expected = self.expect(lambda x: self.mesh.exchange(self.mesh.accumulate(x)))
        assert_trees_equal(self.call(self.plan.sum_shared, self.fields), expected)

    def check_extremum(self):
        name, combine = [("MAX", np.maximum), ("MIN", np.minimum)][self.random.integers(2)]
        extremum = functools.partial(self.plan.accumulate, op=getattr(MPI, name))
        real = [n for n, dtype in enumerate(self.dtypes) if "complex" not in dtype]
        expected = [
            jnp.asarray(self.mesh.accumulate(self.of_ranks[n], combine)[RANK]) for n in real
        ]
        actual = self.call(extremum, [self.fields[n] for n in real])
        assert_trees_equal(actual, expected)

    def check_start(self):
        finish = [self.plan.finish, mpi.wait][self.random.integers(2)]
        actual = self.call(lambda x: finish(self.plan.start(x)), self.fields)
        assert_trees_equal(actual, self.updated)

    def check_during(self):
        actual, total = self.call(
            lambda x: self.plan.exchange(x, during=lambda old: jnp.sum(old[0])), self.fields
        )
        assert_trees_equal(actual, self.updated)
        np.testing.assert_array_equal(total, jnp.sum(self.fields[0]))

    def check_axis(self):
        turned = [jnp.moveaxis(x, 0, -1) for x in self.fields]
        for name, expected in (
            ("exchange", self.updated),
            ("accumulate", self.accumulated),
        ):
            function = functools.partial(getattr(self.plan, name), axis=-1)
            actual = self.call(function, turned)
            assert_trees_equal([jnp.moveaxis(x, -1, 0) for x in actual], expected)

    def check_vmap(self):
        batched = [jnp.stack([x, 2 * x]) for x in self.fields]
        for name, expected in (
            ("exchange", self.updated),
            ("accumulate", self.accumulated),
        ):
            actual = self.call(jax.vmap(getattr(self.plan, name)), batched)
            assert_trees_equal([x[0] for x in actual], expected)

    def check_blocks(self):
        count = int(np.prod(self.inner))
        plan = Plan.blocked(self.plan, count)
        np.testing.assert_array_equal(plan.owned, np.repeat(self.plan.owned, count))
        flat = [x.reshape(-1) for x in self.fields]
        for function, expected in (
            (plan.exchange, self.updated),
            (plan.accumulate, self.accumulated),
            (lambda x: plan.finish(plan.start(x)), self.updated),
        ):
            actual = self.call(function, flat)
            assert_trees_equal([x.reshape(-1, *self.inner) for x in actual], expected)

    def check_ghosts(self):
        own = self.call(self.plan.without_ghosts, self.fields)
        assert_trees_equal(own, [x[self.plan.owned] for x in self.fields])
        assert_trees_equal(self.call(self.plan.with_ghosts, own), self.updated)

    def check_whole_fields(self):
        root = self.random.choice([None, 0, LAST])
        wholes = [jnp.asarray(self.mesh.gather(x)) for x in self.of_ranks]
        gathered = self.call(lambda x: self.plan.gather(x, root=root), self.fields)
        assert_trees_equal(gathered, wholes if root in (None, RANK) else None)
        scattered = self.call(lambda x: self.plan.scatter(x, root=root), wholes)
        assert_trees_equal(scattered, self.updated)

    def check_derivatives(self):
        """Both are linear, and each of them is the transpose of the other one."""
        inexact = [n for n, name in enumerate(self.dtypes) if name != "int32"]
        if not inexact:
            return  # vmap wants an array
        fields = [self.fields[n] for n in inexact]
        updated, accumulated = (
            [x[n] for n in inexact] for x in (self.updated, self.accumulated)
        )

        def pulled(function, fields):
            return jax.vjp(function, fields)[1](fields)[0]

        def pushed(function, fields):
            return jax.jvp(function, (fields,), (fields,))[1]

        def pulled_batch(function, fields):
            pull = jax.vjp(function, fields)[1]
            both = [jnp.stack([x, 2 * x]) for x in fields]
            return [x[0] for x in jax.vmap(pull)(both)[0]]

        for name, forward, transposed in (
            ("exchange", updated, accumulated),
            ("accumulate", accumulated, updated),
        ):
            function = getattr(self.plan, name)
            for derivative, expected in (
                (pulled, transposed),
                (pushed, forward),
                (pulled_batch, transposed),
            ):
                actual = self.call(functools.partial(derivative, function), fields)
                assert_trees_equal(actual, expected)


CHECKS = [name for name in vars(Case) if name.startswith("check")]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_plans(seed):
    case = Case(seed)
    names = case.random.choice(CHECKS, 3, replace=False)
    print(f"{case.mesh.partition.name}, {case.plan!r}, {case.dtypes}")
    print(f"rows of shape {case.inner}, {names}, {case.is_jitted=}")
    for name in names:
        getattr(case, name)()


@several_ranks
def test_rows_and_neighbors():
    """A ring of processes with three points, and one more of each neighbor."""
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    ids = [3 * left + 2, *range(3 * RANK, 3 * RANK + 3), 3 * right]
    plan = Plan.from_global(ids, [False, True, True, True, False], comm=COMM)
    assert plan.comm == COMM
    assert plan.size == 5
    assert plan.neighbors == tuple(sorted({left, right}))
    assert plan.owned_rows.tolist() == [1, 2, 3]
    assert plan.ghost_rows.tolist() == [0, 4]
    assert plan.interior_rows.tolist() == [2]
    assert plan.blocked(2).interior_rows.tolist() == [4, 5]
    numbers = plan.renumber()
    rows = np.stack([2 * numbers, 2 * numbers + 1], 1).ravel()
    np.testing.assert_array_equal(plan.blocked(2).renumber(), rows)
    np.testing.assert_array_equal(plan.renumber(), ids)
    by_lists = {left: ([1], [0]), right: ([3], [4])}
    if left == right:
        by_lists = {left: ([1, 3], [4, 0])}
    same = Plan.from_neighbors(by_lists, 5, comm=COMM)
    u = jnp.asarray([0.0, *ids[1:4], 0.0])
    for each in (plan, same):
        np.testing.assert_array_equal(each.exchange(u), ids)
    neighbor = plan.neighbors[0]
    count = 2 if left == right else 1
    text = plan.describe(jnp.zeros((5, 2), jnp.float32))
    assert text.splitlines()[:3] == [
        f"rank {RANK} of {SIZE}: 3 own rows, 2 ghosts",
        "own points of all ranks: 3 to 3, 1.00 of the mean",
        f"  rank {neighbor}: {count} points ({8 * count} bytes) to it, {count} points "
        f"({8 * count} bytes) from it",
    ]
    assert repr(plan) == (
        f"<unstructured.Plan: 3 own rows, 2 ghosts, {len(plan.neighbors)} neighbors>"
    )


@pytest.mark.usefixtures("every_call")
def test_one_message_for_all_fields():
    """Of any types, to each neighbor."""
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    lists = {left: ([1], []), right: ([], [0])}
    if left == right:
        lists = {left: ([1], [0])}
    plan = Plan.from_neighbors(lists, 2)
    fields = {"a": jnp.zeros(2), "b": jnp.zeros((2, 3)), "c": jnp.zeros(2, jnp.int8)}
    jax.block_until_ready(plan.exchange(fields))
    call = diagnostics.recent()[-1]
    assert call.operation == "exchange"
    sent = [text for text in call.arguments if text.startswith("to ")]
    assert len(sent) == 1


def test_extremum_of_equals_is_shared_out():
    """The gradient of a maximum goes to all copies that attain it, in equal parts."""
    plan = Plan.from_global([7], comm=COMM)
    x = jnp.asarray([2.0])
    maximum = functools.partial(plan.accumulate, op=MPI.MAX)
    _, tangent = jax.jvp(maximum, (x,), (jnp.asarray([1.0 + RANK]),))
    expected = (SIZE + 1) / 2 if RANK == 0 else 0
    np.testing.assert_allclose(tangent, [expected], rtol=1e-14)
    (cotangent,) = jax.vjp(maximum, x)[1](jnp.asarray([3.0]))
    np.testing.assert_allclose(cotangent, [3.0 / SIZE], rtol=1e-14)


def test_a_whole_field_that_others_do_not_have():
    """Of a field that is not root's, only shape and dtype are used."""
    plan = Plan.from_global(np.array([RANK]), comm=COMM)
    whole = np.arange(2 * SIZE, dtype=np.float32).reshape(SIZE, 2)
    field = whole if RANK == LAST else jax.ShapeDtypeStruct(whole.shape, whole.dtype)
    np.testing.assert_array_equal(plan.scatter(field, root=LAST), whole[[RANK]])


def test_bad_fields():
    plan = Plan.from_neighbors({}, 3, comm=COMM)
    for call, text in (
        (
            lambda: plan.exchange({"u": jnp.zeros(4)}),
            r"unstructured.Plan.exchange got an array of shape \(4,\) for `fields\['u'\]`, "
            "expected 3 rows along axis 0",
        ),
        (
            lambda: plan.start(jnp.zeros((3, 2)), axis=2),
            r"unstructured.Plan.start got an array of shape \(3, 2\) for `fields`, "
            "expected 3 rows along axis 2",
        ),
        (
            lambda: plan.blocked(2).accumulate(jnp.zeros(3)),
            r"unstructured.Plan.accumulate got an array of shape \(3,\) for `fields`, "
            "expected 6 rows along axis 0",
        ),
        (
            lambda: plan.with_ghosts(jnp.zeros(2)),
            r"unstructured.Plan.with_ghosts got an array of shape \(2,\) for `fields`, "
            "expected 3 rows along axis 0",
        ),
        (
            lambda: plan.accumulate(jnp.zeros(3), MPI.PROD),
            "unstructured.Plan.accumulate got PROD for argument `op`, expected MPI.SUM, "
            "MPI.MAX or MPI.MIN",
        ),
        (
            lambda: plan.blocked(0),
            "unstructured.Plan.blocked got 0 for argument `k`, expected a positive number",
        ),
        (
            lambda: plan.gather(jnp.zeros(3), root=SIZE),
            f"unstructured.Plan.gather got {SIZE} for argument `root`, expected a rank",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="unstructured.Plan.exchange: `fields` must be an"):
        plan.exchange("u")


def test_a_freed_communicator():
    comm = COMM.Dup()
    plan = Plan.from_neighbors({}, 3, comm=comm)
    comm.Free()
    with pytest.raises(ValueError, match="got a plan whose communicator was freed"):
        plan.exchange(jnp.zeros(3))
