"""Neighbors in random topologies, against what mpi4py gives, and what is at the edge.

The graphs have loops and several edges between two processes, and the grids periodic axes
of one and two. There, neighbors are one process.
"""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


def edges(seed, most=2):
    """How many edges there are from each process to each: the same everywhere."""
    return np.random.default_rng([seed, SIZE]).integers(0, most + 1, (SIZE, SIZE))


def repeated(counts):
    return [rank for rank, count in enumerate(counts) for _ in range(count)]


def distributed_graph(seed):
    table = edges(seed)
    mix = np.random.default_rng([seed, RANK]).permutation
    sources = [int(rank) for rank in mix(repeated(table[:, RANK]))]
    destinations = [int(rank) for rank in mix(repeated(table[RANK]))]
    return WORLD.Create_dist_graph_adjacent(sources, destinations)


def graph(seed):
    table = edges(seed, 1)
    table = table + table.T  # to itself, a process has none or two
    index = [0, *map(int, np.cumsum(table.sum(axis=1)))]
    return WORLD.Create_graph(index, list(itertools.chain(*map(repeated, table))))


def grid(seed):
    generator = np.random.default_rng(seed)
    axes = int(generator.integers(1, 4))
    sides = generator.permutation(MPI.Compute_dims(SIZE, axes))
    periods = [bool(draw < 0.6) for draw in generator.random(axes)]
    return WORLD.Create_cart([int(side) for side in sides], periods)


def line(periodic):
    return WORLD.Create_cart([SIZE], [periodic])


TOPOLOGIES = {
    **{f"distributed-{seed}": (distributed_graph, seed) for seed in range(3)},
    **{f"graph-{seed}": (graph, seed) for seed in range(2)},
    **{f"grid-{seed}": (grid, seed) for seed in range(5)},
    "ring": (line, True),
    "line": (line, False),
    "point": (lambda _: WORLD.Create_cart([], []) if SIZE == 1 else line(True), None),
}


@pytest.fixture(params=TOPOLOGIES)
def comm(request):
    make, argument = TOPOLOGIES[request.param]
    made = make(argument)
    yield made
    made.Free()


def neighbors(comm):
    """Those that send to this process, and those that it sends to."""
    if comm.Get_topology() == MPI.CART:
        both = [rank for axis in range(comm.Get_dim()) for rank in comm.Shift(axis, 1)]
        return both, both
    if comm.Get_topology() == MPI.GRAPH:
        both = list(comm.Get_neighbors(RANK))
        return both, both
    return comm.Get_dist_neighbors()[:2]


def origins(comm):
    """Of each block that this process gets, who sends it, and which of its blocks it is.

    In a grid, what comes from before was sent to the one behind (MPI-4.1 §8.6, example
    8.10). In a graph, the edges between two processes have one order on both ends.
    """
    sources, destinations = neighbors(comm)
    blocks = comm.allgather(
        [
            [n for n, rank in enumerate(destinations) if rank == receiver]
            for receiver in range(SIZE)
        ]
    )
    origins = []
    for index, source in enumerate(sources):
        if source == MPI.PROC_NULL:
            origins.append(None)
        elif comm.Get_topology() == MPI.CART:
            origins.append((source, index ^ 1))
        else:
            edge = sources[:index].count(source)
            origins.append((source, blocks[source][RANK][edge]))
    return origins


def mine(*shape):
    return np.random.default_rng([RANK, *shape]).standard_normal(shape)


def split(rows, counts):
    return np.split(rows, np.cumsum(counts)[:-1]) if counts else []


EDGE = 7.5


class Expected:
    """A call of each operation and its expected result, with rows of `width` numbers."""

    def __init__(self, comm, width=3):
        self.comm, self.width = comm, width
        self.origins = origins(comm)
        outdegree = len(neighbors(comm)[1])
        generator = np.random.default_rng([7, RANK])
        self.sent = [int(n) for n in generator.integers(0, 4, outdegree)]
        # Where there is no process, there are two rows.
        everyones = comm.allgather(self.sent)
        self.received = [2 if o is None else everyones[o[0]][o[1]] for o in self.origins]
        self.counts = [2 if o is None else o[0] % 3 for o in self.origins]
        self.arrays = (
            mine(width),
            mine(RANK % 3, width),
            mine(outdegree, width),
            mine(sum(self.sent), width),
        )

    def call(self, block, own_rows, blocks, rows, fill_value):
        """All four, of these arrays."""
        comm = self.comm
        return (
            mpi.neighbor_allgather(block, fill_value=fill_value, comm=comm),
            mpi.neighbor_allgatherv(
                own_rows, self.counts, fill_value=fill_value, comm=comm
            ),
            mpi.neighbor_alltoall(blocks, fill_value=fill_value, comm=comm),
            mpi.neighbor_alltoallv(
                rows, self.sent, self.received, fill_value=fill_value, comm=comm
            ),
        )

    @property
    def results(self):
        """By the definition, from the arrays of all."""
        width = self.width
        parts = split(self.arrays[3], self.sent)
        everyones = self.comm.allgather((*self.arrays[:3], parts))
        nothing = np.full((2, width), EDGE)

        def received(find, fill_value):
            return [fill_value if o is None else find(*o) for o in self.origins]

        none = [np.zeros((0, width))]
        return (
            np.array(received(lambda p, _: everyones[p][0], nothing[0])).reshape(-1, width),
            np.concatenate(none + received(lambda p, _: everyones[p][1], nothing)),
            np.array(received(lambda p, n: everyones[p][2][n], nothing[0])).reshape(
                -1, width
            ),
            np.concatenate(none + received(lambda p, n: everyones[p][3][n], nothing)),
        )

    @property
    def results_of_mpi(self):
        """The results of mpi4py, in arrays that hold the fill value before."""
        width = self.width

        def empty(rows):
            return np.full((rows, width), EDGE)

        def numbers(counts):
            return [width * count for count in counts]

        block, own_rows, blocks, rows = self.arrays
        gathered, received = empty(len(self.origins)), empty(len(self.origins))
        rows_gathered, rows_received = empty(sum(self.counts)), empty(sum(self.received))
        double = MPI.DOUBLE
        self.comm.Neighbor_allgather([block, width, double], [gathered, width, double])
        self.comm.Neighbor_allgatherv(
            [own_rows, own_rows.size, double],
            [rows_gathered, numbers(self.counts), double],
        )
        self.comm.Neighbor_alltoall([blocks, width, double], [received, width, double])
        self.comm.Neighbor_alltoallv(
            [rows, numbers(self.sent), double],
            [rows_received, numbers(self.received), double],
        )
        return gathered, rows_gathered, received, rows_received


def is_mpi_right():
    """Whether MPI puts the blocks of several edges between two processes where they belong.

    MPICH did not before 5.0 (https://github.com/pmodels/mpich/pull/7945).
    """
    sent = np.arange(4.0)
    for comm, expected in (
        (MPI.COMM_SELF.Create_dist_graph_adjacent([0] * 4, [0] * 4), [0, 1, 2, 3]),
        (MPI.COMM_SELF.Create_cart([1, 1], [True, True]), [1, 0, 3, 2]),
    ):
        received = np.zeros(4)
        comm.Neighbor_alltoall([sent, 1, MPI.DOUBLE], [received, 1, MPI.DOUBLE])
        comm.Free()
        if list(received) != expected:
            return False
    return True


@pytest.mark.usefixtures("enable_x64")
@pytest.mark.parametrize("width", [3, 300])
def test_values(comm, width):
    """Small blocks between two processes travel together, and large ones by themselves."""
    case = Expected(comm, width)
    for results in (
        case.call(*case.arrays, EDGE),
        jax.jit(lambda *arrays: case.call(*arrays, EDGE))(*case.arrays),
    ):
        for result, expected in zip(results, case.results, strict=True):
            np.testing.assert_array_equal(result, expected)
    if is_mpi_right():
        for result, expected in zip(case.results_of_mpi, case.results, strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("enable_x64")
def test_derivatives(comm):
    case = Expected(comm)

    def function(arrays, fill_value):
        return case.call(*arrays, fill_value)

    primals = case.arrays, np.float64(EDGE)
    tangents = jax.tree.map(lambda x: mine(*np.shape(x), 1)[..., 0], primals)
    results = jax.eval_shape(function, *primals)
    cotangents = jax.tree.map(lambda x: mine(*np.shape(x), 2)[..., 0], results)

    @jax.jit
    def derivatives(primals, tangents, cotangents):
        _, pushed = jax.jvp(function, primals, tangents)
        _, pull = jax.vjp(function, *primals)
        # The operations and the fill values are linear.
        return pushed, function(*tangents), pull(cotangents)

    pushed, expected, gradients = derivatives(primals, tangents, cotangents)
    for tangent, expected_tangent in zip(pushed, expected, strict=True):
        np.testing.assert_allclose(tangent, expected_tangent, rtol=1e-14)

    def inner(xs, ys):
        pairs = zip(jax.tree.leaves(xs), jax.tree.leaves(ys), strict=True)
        return WORLD.allreduce(float(sum(np.vdot(x, y) for x, y in pairs)))

    left = inner(pushed, cotangents)
    assert abs(left - inner(tangents, gradients)) < 1e-12 * max(1, abs(left))
    _, pull = jax.vjp(function, *primals)
    for gradient, expected_gradient in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(pull(cotangents)), strict=True
    ):
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-14)


@pytest.fixture
def ring():
    comm = line(True)
    yield comm
    comm.Free()


@pytest.fixture
def row():
    """Processes in a line, of which the first and the last have one neighbor."""
    comm = line(False)
    yield comm
    comm.Free()


def beyond(row, value):
    """The two blocks that a process in a line gets, if each sends its own rank in both."""
    before, behind = row.Shift(0, 1)
    return [value if rank == MPI.PROC_NULL else rank for rank in (before, behind)]


def test_edge(row):
    x = jnp.full((2,), RANK, np.float32)
    both = jnp.stack([x, x])

    def check(function, value):
        for result in (function(value), jax.jit(function)(value)):
            expected = [np.broadcast_to(part, 2) for part in beyond(row, value)]
            np.testing.assert_array_equal(result, expected)

    for value in (0, 1, 2.5, np.nan, np.float64(3), np.arange(2.0), jnp.arange(1.0)):
        check(
            lambda fill_value: mpi.neighbor_alltoall(both, fill_value=fill_value, comm=row),
            value,
        )
        check(
            lambda fill_value: mpi.neighbor_allgather(x, fill_value=fill_value, comm=row),
            value,
        )
    np.testing.assert_array_equal(
        mpi.neighbor_allgather(x, comm=row), [np.full(2, n) for n in beyond(row, 0)]
    )
    _, token = mpi4jax.experimental.tokens.neighbor_allgather(x, fill_value=1, comm=row)
    assert token == mpi4jax.experimental.tokens.barrier()


@pytest.mark.parametrize("dtype", [bool, np.int8, jnp.int4, jnp.bfloat16, np.complex64])
def test_edge_of_each_kind(row, dtype):
    x = jnp.zeros(3, dtype)
    value = np.ones((), dtype)[()]
    result = mpi.neighbor_allgather(x, fill_value=value, comm=row)
    is_edge = [rank == MPI.PROC_NULL for rank in row.Shift(0, 1)]
    assert result.dtype == dtype
    expected = np.broadcast_to(np.array(is_edge)[:, None], (2, 3))
    np.testing.assert_array_equal(np.asarray(result).astype(bool), expected)


def test_edge_under_vmap(row, calls_of):
    xs = jnp.arange(3.0) + RANK
    edges = jnp.array([5.0, 6.0, 7.0])

    def function(x, fill_value):
        return mpi.neighbor_allgather(x, fill_value=fill_value, comm=row)

    result, calls = calls_of(jax.vmap(function), xs, edges)
    assert calls == Counter(Neighbor_allgather=1)
    expected = [
        [edge if rank == MPI.PROC_NULL else rank + n for rank in row.Shift(0, 1)]
        for n, edge in enumerate(edges)
    ]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("fill_value", "dtype", "error", "text"),
    [
        ("a", np.float32, TypeError, "`fill_value` must be an array or a number, not 'a'"),
        (None, np.float32, TypeError, "must be an array or a number, not None"),
        (
            1.5,
            np.int32,
            TypeError,
            "got float.* `fill_value`, expected a number that is int32",
        ),
        (1, bool, TypeError, "got int.* `fill_value`, expected a number that is bool"),
        (1j, np.float32, TypeError, "got complex.* `fill_value`, expected .* float32"),
        (np.ones(3), np.float32, ValueError, r"\(3,\) .* an array for blocks of shape"),
        (np.ones((1, 2)), np.float32, ValueError, r"blocks of shape \(2,\)"),
        (300, np.uint8, OverflowError, "300 out of bounds"),
    ],
)
def test_wrong_edges(ring, fill_value, dtype, error, text, calls_of):
    """They are refused on all processes, also on those that have no edge."""
    x = jnp.zeros((2, 2), dtype)

    def refused():
        for transform in (lambda f: f, jax.jit):
            with pytest.raises(error, match=text):
                transform(
                    lambda x: mpi.neighbor_alltoall(x, fill_value=fill_value, comm=ring)
                )(x)

    assert calls_of(refused) == (None, Counter())


OPERATIONS = {
    "neighbor_allgather": lambda x, comm: mpi.neighbor_allgather(x, comm=comm),
    "neighbor_allgatherv": lambda x, comm: mpi.neighbor_allgatherv(x, [1, 1], comm=comm),
    "neighbor_alltoall": lambda x, comm: mpi.neighbor_alltoall(x, comm=comm),
    "neighbor_alltoallv": lambda x, comm: mpi.neighbor_alltoallv(
        x, [1, 1], [1, 1], comm=comm
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_communicators_without_a_topology(name):
    text = (
        f"{name} got a communicator without a topology for argument `comm`, expected one "
        r"on which processes have neighbors. Make it with comm.Create_cart\(dims, periods\)"
    )
    for comm in (None, MPI.COMM_WORLD):
        with pytest.raises(ValueError, match=text):
            OPERATIONS[name](jnp.ones(2), comm)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_graphs_that_are_not_symmetric(name):
    index = [0, 1, *[1] * (SIZE - 1)]
    comm = WORLD.Create_graph(index, [1])
    text = (
        f"{name} got a communicator for argument `comm` with a graph that is not "
        "symmetric: process 1 is a neighbor of 0 in 1 edges, and 0 of 1 in 0. Make it with "
        r"comm.Create_dist_graph_adjacent\(sources, destinations\)"
    )
    with pytest.raises(ValueError, match=text):
        OPERATIONS[name](jnp.ones(2), comm)
    assert mpi.allreduce(1, MPI.SUM, comm=comm) == SIZE
    comm.Free()


def test_wrong_shapes(ring):
    for x in (jnp.ones((3, 2)), jnp.ones(())):
        with pytest.raises(
            ValueError, match=r"expected \(2, \.\.\.\), as this process sends to 2 neigh"
        ):
            mpi.neighbor_alltoall(x, comm=ring)
    text = r"shape \(\) for argument `x`, expected "
    with pytest.raises(ValueError, match=text):
        mpi.neighbor_allgatherv(jnp.ones(()), [1, 1], comm=ring)


def test_rows_that_stay():
    """The counts of rows from a process to itself agree."""
    comm = MPI.COMM_SELF.Create_cart([1], [True])
    # What goes to the one behind comes from the one before.
    x = jnp.arange(3.0)
    result = mpi.neighbor_alltoallv(x, [1, 2], [2, 1], comm=comm)
    np.testing.assert_array_equal(result, [1, 2, 0])
    text = (
        "got 2 rows in `sendcounts` and 1 in `recvcounts` for an edge from this process to "
        r"itself \(rank 0\), expected the same number"
    )
    with pytest.raises(ValueError, match=text):
        mpi.neighbor_alltoallv(x, [1, 2], [1, 2], comm=comm)
    text = r"shape \(3,\) for argument `x`, expected \(2, \.\.\.\), as the counts say"
    with pytest.raises(ValueError, match=text):
        mpi.neighbor_allgatherv(x, [3, 2], comm=comm)
    comm.Free()


def test_in_a_loop(ring):
    """Each block goes around, in its direction."""

    @jax.jit
    def around(x):
        def step(_, x):
            return mpi.neighbor_alltoall(x, comm=ring)[::-1]

        return jax.lax.fori_loop(0, SIZE + 1, step, x)

    x = jnp.array([[RANK], [SIZE + RANK]])
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    np.testing.assert_array_equal(around(x), [[right], [SIZE + left]])


def test_programs_have_nothing_more_without_an_edge(ring, row):
    x = jnp.ones((2, 3))

    def text(comm):
        function = jax.jit(lambda x: mpi.neighbor_alltoall(x, fill_value=1, comm=comm))
        return function.lower(x).as_text()

    assert "update_slice" not in text(ring)
    assert "update_slice" in text(row) or MPI.PROC_NULL not in row.Shift(0, 1)
    assert len(set(WORLD.allgather(text(ring)))) == 1


def test_receives_of_users_are_left_alone(ring):
    """Fails where messages travel on the communicator itself."""
    buffer = np.zeros(10)
    request = ring.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG)
    x = jnp.arange(2.0) + 10 * RANK
    result = mpi.neighbor_alltoall(x, comm=ring)
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    np.testing.assert_array_equal(result, [10 * left + 1, 10 * right])
    assert not request.Test()
    request.Cancel()
    request.Wait()


def test_freed_communicators_are_an_error():
    comm = line(True)
    function = jax.jit(lambda x: mpi.neighbor_allgather(x, comm=comm))
    assert function(jnp.ones(1)).shape == (2, 1)
    comm.Free()
    with pytest.raises(Exception, match="communicator [0-9]+ was freed"):
        function(jnp.ones(1)).block_until_ready()
