"""Operations inside of programs over all ranks: in `jax.shard_map`, with JAX's collectives.

Each program runs with JAX's check of what varies over the mesh, and without.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs, vary

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
NULL = MPI.PROC_NULL

#: The rows of all ranks, and a weight for each element of a row.
WHOLE = np.arange(3.0 * SIZE).reshape(SIZE, 3) + 1
OWN = WHOLE[RANK : RANK + 1]
WEIGHTS = np.array([1.0, -2.0, 3.0])

pytestmark = [
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1"),
]


@pytest.fixture
def sharded(mesh, spread):
    """The array of all ranks, whose row belongs to each."""
    return spread(WHOLE, mesh, "i")


@pytest.fixture
def mapped(mesh, is_checked):
    """Makes a function of the array of all ranks from one of a rank's row."""

    def call(body, is_invariant=False):
        out = P() if is_checked and is_invariant else P("i")
        specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": out}
        return jax.shard_map(body, check_vma=is_checked, **specs)

    return call


@pytest.fixture
def run(mapped, sharded):
    """The part that this rank has of what a function of its row gives."""

    def call(body, is_invariant=False):
        result = jax.jit(mapped(body, is_invariant))(sharded)
        return np.asarray(result.addressable_data(0))

    return call


def neighbors(is_ring):
    """The ranks on the left and on the right, as the program computes them."""
    rank = lax.axis_index("i")
    left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
    if is_ring:
        return left, right
    return jnp.where(rank > 0, left, NULL), jnp.where(rank < SIZE - 1, right, NULL)


def rows_of_neighbors(mpi, x):
    """Ten times the left neighbor's row plus the right one's, with -x for a missing one."""
    left, right = neighbors(is_ring=False)
    # To the right in two parts.
    sent, received = [(x[:, :1], x[:, 1:]), x], [(-x[:, :1], -x[:, 1:]), -x]
    tags = {"sendtag": [0, 1], "recvtag": [0, 1]}
    parts, upper = mpi.exchange(sent, received, [left, right], [right, left], **tags)
    return 10 * jnp.concatenate(parts, 1) + upper


class Started:
    """The operations of mpi4jax, each as its nonblocking form and the wait for it."""

    def __getattr__(self, name):
        start = getattr(mpi, f"i{name}")
        return lambda *args, **kwargs: mpi.wait(start(*args, **kwargs))


# What each operation gives: whether that is the same on all ranks, a function of the module
# and a row, and the result on this rank.
BLOCKING = {
    "allreduce": (True, lambda mpi, x: mpi.allreduce(x, MPI.SUM), WHOLE.sum(0)[None]),
    "allreduce_max": (True, lambda mpi, x: mpi.allreduce(x, MPI.MAX), WHOLE[-1:]),
    "allgather": (True, lambda mpi, x: mpi.allgather(x), WHOLE[:, None]),
    "bcast": (True, lambda mpi, x: mpi.bcast(x, SIZE - 1), WHOLE[-1:]),
    "reduce": (
        False,
        lambda mpi, x: mpi.reduce(x, MPI.SUM, 0),
        WHOLE.sum(0)[None] if RANK == 0 else OWN,
    ),
    "gather": (False, lambda mpi, x: mpi.gather(x, 0), WHOLE[:, None] * (RANK == 0)),
    "scatter": (
        False,
        lambda mpi, x: mpi.scatter(x * jnp.arange(SIZE, dtype=x.dtype)[:, None], 0)[None],
        WHOLE[:1] * RANK,
    ),
    "scan": (False, lambda mpi, x: mpi.scan(x, MPI.SUM), WHOLE[: RANK + 1].sum(0)[None]),
    "exscan": (False, lambda mpi, x: mpi.exscan(x, MPI.SUM), WHOLE[:RANK].sum(0)[None]),
    "alltoall": (
        False,
        lambda mpi, x: mpi.alltoall(x * jnp.arange(SIZE, dtype=x.dtype)[:, None]),
        WHOLE * RANK,
    ),
    "reduce_scatter": (
        False,
        lambda mpi, x: mpi.reduce_scatter(
            x * jnp.arange(SIZE, dtype=x.dtype)[:, None], MPI.SUM
        )[None],
        WHOLE.sum(0)[None] * RANK,
    ),
    "sendrecv": (
        False,
        lambda mpi, x: mpi.sendrecv(x, x, *neighbors(is_ring=True)),
        WHOLE[RANK - 1][None],
    ),
    "sendrecv_to_nobody": (
        False,
        lambda mpi, x: mpi.sendrecv(x, -x, *neighbors(is_ring=False)),
        WHOLE[RANK - 1][None] if RANK > 0 else -OWN,
    ),
    "exchange": (
        False,
        rows_of_neighbors,
        10 * (WHOLE[RANK - 1] if RANK > 0 else -WHOLE[RANK])[None]
        + (WHOLE[RANK + 1] if RANK < SIZE - 1 else -WHOLE[RANK])[None],
    ),
    "computed_root": (
        True,
        lambda mpi, x: mpi.bcast(x, lax.psum(1, "i") - 1 + 0 * lax.axis_index("i")),
        WHOLE[-1:],
    ),
    "psum_of_scan": (
        True,
        lambda mpi, x: lax.psum(mpi.scan(x, MPI.SUM), "i"),
        sum(WHOLE[: rank + 1].sum(0) for rank in range(SIZE))[None],
    ),
    "rows": (
        True,
        lambda mpi, x: mpi.allgatherv(x, 1, capacity=SIZE + 1)[0],
        np.vstack([WHOLE, np.zeros((1, 3))]),
    ),
}
# A function of a row. What has no nonblocking form is in the first list only.
OPERATIONS = {
    prefix + name: (is_invariant, functools.partial(function, module), expected)
    for prefix, module in (("", mpi), ("i", Started()))
    for name, (is_invariant, function, expected) in BLOCKING.items()
    if name != "rows" or not prefix
}


# Where else an operation may be. Each gives the same as the operation, which is linear, or
# a maximum.
STRUCTURES = {
    "alone": lambda function: function,
    "scan": lambda function: (
        lambda x: lax.scan(lambda *_: (function(x), None), 0 * function(x), length=2)[0]
    ),
    "while": lambda function: (
        lambda x: lax.while_loop(
            lambda state: state[0] < 2,
            lambda state: (state[0] + 1, function(x)),
            (0, 0 * function(x)),
        )[1]
    ),
    "cond": lambda function: (
        lambda x: lax.cond(lax.psum(x.sum(), "i") > 0, function, lambda x: -function(x), x)
    ),
    "checkpoint": jax.checkpoint,
    "jit": jax.jit,
    "vmap": lambda function: lambda x: jax.vmap(function)(jnp.stack([x, 2 * x]))[1] / 2,
}
structures = pytest.mark.parametrize("structure", STRUCTURES)
#: Those through which JAX can go back.
reversible = pytest.mark.parametrize("structure", [s for s in STRUCTURES if s != "while"])


@pytest.mark.parametrize("name", OPERATIONS)
@structures
def test_results(run, name, structure):
    is_invariant, function, expected = OPERATIONS[name]
    result = run(STRUCTURES[structure](function), is_invariant)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_donated_operands(mapped, sharded, name):
    is_invariant, function, expected = OPERATIONS[name]
    program = jax.jit(mapped(function, is_invariant), donate_argnums=0)
    for _ in range(2):
        result = program(sharded + 0)
        np.testing.assert_allclose(result.addressable_data(0), expected, rtol=1e-12)


def dense_jacobian(function, spread_rows):
    """All results of a linear function of the rows of all ranks, by pushing a basis."""
    compiled = jax.jit(function)
    columns = []
    for unit in np.eye(WHOLE.size):
        result = compiled(spread_rows(unit.reshape(WHOLE.shape)))
        own = np.asarray(result.addressable_data(0))
        parts = [own] if result.is_fully_replicated else COMM.allgather(own)
        columns.append(np.concatenate([part.ravel() for part in parts]))
    return np.array(columns).T


LINEAR = [name for name in OPERATIONS if not name.endswith("allreduce_max")]


@pytest.mark.parametrize("name", LINEAR)
@reversible
def test_derivatives(mesh, spread, sharded, mapped, name, structure):
    """The transpose is the transposed matrix of the whole program, as for JAX's own."""
    is_invariant, function, _ = OPERATIONS[name]
    program = mapped(STRUCTURES[structure](function), is_invariant)
    matrix = dense_jacobian(program, lambda rows: spread(rows, mesh, "i"))
    cotangent = np.random.default_rng(0).normal(size=matrix.shape[0])

    def pull(x):
        y, pullback = jax.vjp(program, x)
        return pullback(jnp.asarray(cotangent).reshape(y.shape))[0]

    own = np.asarray(jax.jit(pull)(sharded).addressable_data(0))
    pulled = (matrix.T @ cotangent).reshape(WHOLE.shape)
    np.testing.assert_allclose(own, pulled[RANK : RANK + 1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LINEAR)
@reversible
def test_gradients_inside(mesh, spread, mapped, run, name, structure):
    """All ranks have a loss of their own, and the gradient is the gradient of the sum."""
    _, function, _ = OPERATIONS[name]

    def varying(x):
        return vary(STRUCTURES[structure](function)(x), ("i",))

    matrix = dense_jacobian(mapped(varying), lambda rows: spread(rows, mesh, "i"))
    cotangents = np.random.default_rng(0).normal(size=(SIZE, matrix.shape[0] // SIZE))

    def loss(x):
        own = jnp.asarray(cotangents)[lax.axis_index("i")]
        return varying(x).ravel() @ own

    pulled = (matrix.T @ cotangents.ravel()).reshape(WHOLE.shape)
    np.testing.assert_allclose(
        run(jax.grad(loss)), pulled[RANK : RANK + 1], rtol=1e-10, atol=1e-10
    )


def test_a_gradient_inside(run, is_checked):
    """Unchecked, all ranks have a loss of their own, as with `lax.psum`."""

    def gradient(total):
        return lambda x: jax.grad(lambda x: jnp.sum(total(x * x) * WEIGHTS))(x)

    ours = run(gradient(lambda x: mpi.allreduce(x, MPI.SUM)))
    np.testing.assert_allclose(ours, run(gradient(lambda x: lax.psum(x, "i"))))
    assert np.any(ours)


@pytest.mark.parametrize("name", ["SUM", "PROD", "MAX"])
def test_gradients_of_nonblocking_reductions(mapped, sharded, is_checked, name):
    """Where JAX knows that the result is one value, it counts once."""
    op = getattr(MPI, name)

    def gradients(module):
        program = mapped(lambda x: module.allreduce(jnp.cos(x), op), is_invariant=True)

        def loss(x):
            return jnp.sum(program(x) * WEIGHTS)

        def of_gradient(x):
            return jnp.sum(jnp.sin(jax.grad(loss)(x)) * jnp.asarray(WHOLE))

        both = jax.jit(jax.grad(loss)), jax.jit(jax.grad(of_gradient))
        return [np.asarray(program(sharded).addressable_data(0)) for program in both]

    first, second = gradients(Started())
    cosines = np.cos(WHOLE)
    factor = {
        "SUM": 1,
        "PROD": cosines.prod(0) / cosines[RANK],
        "MAX": cosines.max(0) == cosines[RANK],
    }[name]
    expected = -np.sin(OWN) * factor * WEIGHTS * (1 if is_checked else SIZE)
    np.testing.assert_allclose(first, expected, rtol=1e-12)
    np.testing.assert_allclose(second, gradients(mpi)[1], rtol=1e-12)


def test_a_gradient_with_nobody_along_an_axis(
    grid, spread, is_checked, skip_what_xla_refuses
):
    """The operands vary over both axes of the mesh, and messages go along one."""
    comm = mpi4jax.axis_comm(grid, "j")

    def body(x):
        return x + mpi.wait(mpi.isendrecv(2 * x, 3 * x, NULL, NULL, comm=comm))

    specs = {"mesh": grid, "in_specs": P(("i", "j")), "out_specs": P(("i", "j"))}
    mapped = jax.shard_map(body, check_vma=is_checked, **specs)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(mapped(x) * WEIGHTS)))
    x = spread(WHOLE, grid, ("i", "j"))
    skip_what_xla_refuses(gradient, x)
    np.testing.assert_allclose(gradient(x).addressable_data(0), 4 * WEIGHTS[None])


def test_send_and_recv(run):
    def body(x):
        rank = lax.axis_index("i")
        left, right = neighbors(is_ring=False)
        mpi.send(x, jnp.where(rank % 2 == 0, right, NULL))
        y = mpi.recv(x, jnp.where(rank % 2 == 1, left, NULL))
        return lax.psum(x, "i") * 0 + y

    expected = WHOLE[RANK - 1][None] if RANK % 2 == 1 else OWN
    np.testing.assert_allclose(run(body), expected)


def test_loops_and_branches(run):
    """In each turn a message to the next rank, and every other turn a sum."""

    def turn(step, x):
        x = mpi.sendrecv(x, x, *neighbors(is_ring=True))
        return lax.cond(step % 2 == 0, halve, lambda x: x, x)

    def halve(x):
        return x / 2 + 0 * lax.psum(x, "i")

    result = run(lambda x: lax.fori_loop(0, 5, turn, x))
    np.testing.assert_allclose(result, WHOLE[(RANK - 5) % SIZE][None] / 8)


def test_vmap_and_remat(run):
    def body(x):
        shift = jax.checkpoint(lambda x: mpi.sendrecv(x, x, *neighbors(is_ring=True)))
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.vmap(shift)(x)) * WEIGHTS))(x)

    # What comes back was multiplied by the cosine of what was sent.
    np.testing.assert_allclose(run(body), np.cos(OWN) * WEIGHTS, rtol=1e-12)


def test_requests_in_a_loop(run):
    """Each turn waits for what the one before has started, also in reverse."""

    def shifted(x):
        def start(x):
            return mpi.isendrecv(x, x, *neighbors(is_ring=True))

        request = lax.fori_loop(0, 3, lambda _, request: start(mpi.wait(request)), start(x))
        return mpi.wait(request)

    np.testing.assert_allclose(run(shifted), WHOLE[(RANK - 4) % SIZE][None])

    def gradient(x):
        def step(request, _):
            y = mpi.wait(request)
            return mpi.isendrecv(y, y, *neighbors(is_ring=True)), jnp.sum(jnp.sin(y))

        def loss(x):
            request = mpi.isendrecv(x, x, *neighbors(is_ring=False))
            request, sums = lax.scan(step, request, length=2)
            return jnp.sum(sums) + jnp.sum(mpi.wait(request) * 0)

        return jax.grad(loss)(x)

    # The first process receives nothing at first, so it has its own row in its place.
    expected = np.cos(OWN) * ((RANK < SIZE - 1) + (RANK == 0))
    np.testing.assert_allclose(run(gradient), 2 * expected, rtol=1e-12)


NEIGHBORS = {
    "neighbor_allgather": lambda mpi, x, **options: mpi.neighbor_allgather(x, **options),
    "neighbor_allgatherv": lambda mpi, x, **options: mpi.neighbor_allgatherv(
        x, [1, 1], **options
    ),
    "neighbor_alltoall": lambda mpi, x, **options: mpi.neighbor_alltoall(
        jnp.stack([x, 2 * x]), **options
    ),
    "neighbor_alltoallv": lambda mpi, x, **options: mpi.neighbor_alltoallv(
        jnp.concatenate([x, 2 * x, 3 * x]), [1, 2], [2, 1], **options
    ),
}


@pytest.mark.parametrize("name", NEIGHBORS)
@pytest.mark.parametrize("module", [mpi, Started()], ids=["", "i"])
@pytest.mark.parametrize("is_periodic", [False, True], ids=["line", "ring"])
def test_neighbors(mesh, spread, run, is_checked, is_periodic, module, name):
    """Values and derivatives, as outside of a program on the mesh."""
    grid = COMM.Create_cart([SIZE], [is_periodic])
    function = functools.partial(NEIGHBORS[name], module, fill_value=7.0, comm=grid)
    result, pull = jax.vjp(function, jnp.asarray(OWN))
    np.testing.assert_array_equal(run(lambda x: function(x)[None])[0], result)
    cotangent = np.random.default_rng(RANK).normal(size=result.shape)
    cotangents = spread(np.array(COMM.allgather(cotangent)), mesh, "i")

    def body(x, cotangent):
        return jax.vjp(function, x)[1](cotangent[0])[0]

    specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
    mapped = jax.jit(jax.shard_map(body, check_vma=is_checked, **specs))
    pulled = mapped(spread(WHOLE, mesh, "i"), cotangents).addressable_data(0)
    np.testing.assert_allclose(pulled, pull(jnp.asarray(cotangent))[0])


def test_axes_of_a_grid(spread, is_checked):
    """On a mesh of two axes, sums along each of them and a message along one."""
    if SIZE % 2:
        pytest.skip("needs an even number of processes")
    devices = np.array(jax.devices()).reshape(2, SIZE // 2)
    mesh = Mesh(devices, ("row", "column"))
    along = {name: mpi4jax.axis_comm(mesh, name) for name in mesh.axis_names}
    assert along["row"] is mpi4jax.axis_comm(mesh, "row")
    assert along["row"].Get_size() == 2
    whole = mpi4jax.axis_comm(mesh)
    assert (whole.Get_size(), whole.Get_rank()) == (SIZE, RANK)
    x = spread(numbered(), mesh, "row", "column")

    def body(x):
        by_row = mpi.allreduce(x, MPI.SUM, comm=along["column"])
        row = lax.axis_index("row")
        opposite = mpi.sendrecv(x, x, 1 - row, 1 - row, comm=along["row"])
        return by_row + 10 * opposite + 100 * mpi.allreduce(x, MPI.SUM, comm=whole)

    specs = {"mesh": mesh, "in_specs": P("row", "column")}
    specs["out_specs"] = P("row", "column")
    mapped = jax.shard_map(body, check_vma=is_checked, **specs)
    own = float(jax.jit(mapped)(x).addressable_data(0)[0, 0])
    row, column = divmod(RANK, SIZE // 2)
    expected = (
        numbered()[row].sum() + 10 * numbered()[1 - row, column] + 100 * numbered().sum()
    )
    assert own == expected


def test_the_first_axis_comm_in_a_program(spread, is_checked):
    """Made when a program is traced, it knows its axes in that program and in others."""
    if SIZE % 2:
        pytest.skip("needs an even number of processes")
    devices = np.array(jax.devices()).reshape(2, SIZE // 2)
    names = f"first {is_checked}", f"second {is_checked}"
    row, column = divmod(RANK, SIZE // 2)
    expected = numbered()[row].sum() + numbered()[:, column].sum()
    for mesh in Mesh(devices, names), Mesh(devices.T, names[::-1]):

        def body(x, mesh=mesh):
            along = [mpi4jax.axis_comm(mesh, name) for name in names]
            return sum(mpi.allreduce(x, MPI.SUM, comm=comm) for comm in along)

        specs = {"mesh": mesh, "in_specs": P(*names), "out_specs": P(*names)}
        mapped = jax.jit(jax.shard_map(body, check_vma=is_checked, **specs))
        x = spread(numbered(), mesh, *names)
        assert float(mapped(x).addressable_data(0)[0, 0]) == expected


def numbered():
    return np.arange(float(SIZE)).reshape(2, SIZE // 2) + 1


@pytest.mark.ranks(2)
def test_a_program_that_differs_is_refused(run):
    """By all ranks, before anything runs, with the line and what differs."""
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    with pytest.raises(RuntimeError, match="not the same on all ranks") as raised:
        run(lambda x: mpi.sendrecv(x, x, left, right))
    text = str(raised.value)
    assert (
        f"on rank 0: sendrecv (dest={1 % SIZE}, recvtag={MPI.ANY_TAG}, sendtag=0, "
        f"source={SIZE - 1}" in text
    )
    assert "on rank 1: sendrecv (dest=" in text
    assert "test_sharded.py" in text
    assert "Nothing was run" in text
    # A constant that differs is another program, too, even if all calls are the same.
    with pytest.raises(RuntimeError, match="The calls are the same, but not"):
        run(lambda x: mpi.scan(x + RANK, MPI.SUM))
    # So is one of many elements, of which the text of the program has a hash only.
    many = np.arange(100.0) + (np.arange(100) == 50) * RANK
    with pytest.raises(RuntimeError, match="elements of large arrays in it, with hash"):
        run(lambda x: mpi.scan(x + jnp.sum(many), MPI.SUM))
    np.testing.assert_allclose(
        run(lambda x: mpi.scan(x, MPI.SUM)), np.cumsum(WHOLE, 0)[RANK][None]
    )


REFUSED = [
    (lambda x: mpi.gatherv(x, [1] * SIZE, 0), NotImplementedError, "with `capacity`"),
    (lambda x: mpi.alltoallv(x, [1] * SIZE, [1] * SIZE), NotImplementedError, "with `capa"),
    (lambda x: mpi.allreduce(x, MPI.SUM, comm=HALF), ValueError, "1 processes|axis_comm"),
    (lambda x: mpi.send(x, x[0, 0]), TypeError, "`dest` must be an integer"),
]
HALF = COMM.Split(RANK * 2 // SIZE)


@pytest.mark.parametrize("index", range(len(REFUSED)))
def test_what_is_refused(run, index):
    function, error, text = REFUSED[index]
    if (HALF.Get_size() == 1 and index == 2) or (SIZE == 1 and index < 3):
        pytest.skip("all is known where a communicator has one process")
    with pytest.raises(error, match=text):
        run(function)


@pytest.mark.ranks(2)
def test_reversed_processes_need_a_communicator_of_the_mesh(spread, is_checked):
    mesh = Mesh(np.array(jax.devices()[::-1]), "i")
    x = spread(WHOLE, mesh, "i")

    def last(comm):
        def body(x):
            return x + 0 * mpi.scan(x, MPI.SUM, comm=comm)

        specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
        return jax.jit(jax.shard_map(body, check_vma=is_checked, **specs))(x)

    with pytest.raises(ValueError, match="Pass comm=mpi4jax.axis_comm"):
        last(None)
    comm = mpi4jax.axis_comm(mesh)
    assert comm.Get_rank() == SIZE - 1 - RANK
    np.testing.assert_allclose(last(comm).addressable_data(0), WHOLE[SIZE - 1 - RANK][None])


@pytest.mark.ranks(2)
def test_outside_of_shard_map(sharded, mesh):
    """The partitioner knows nothing of messages."""
    with pytest.raises(ValueError, match="inside of jax.shard_map over all axes"):
        jax.jit(lambda x: mpi.allreduce(x, MPI.SUM))(sharded)
    if SIZE % 2 or SIZE == 2:
        return
    grid = Mesh(mesh.devices.reshape(2, -1), ("row", "column"))
    specs = {"mesh": grid, "in_specs": P("row"), "out_specs": P("row")}
    partly = functools.partial(jax.shard_map, axis_names={"row"}, **specs)
    with pytest.raises(ValueError, match="over all of them|such axis|processes"):
        jax.jit(partly(lambda x: mpi.scan(x, MPI.SUM)))(sharded)


def test_axis_comm_refuses(mesh):
    with pytest.raises(TypeError, match=r"`mesh` must be a jax.sharding.Mesh, not 3"):
        mpi4jax.axis_comm(3)
    with pytest.raises(ValueError, match="got 'j' for argument `names`, expected axes of"):
        mpi4jax.axis_comm(mesh, "j")
    with pytest.raises(ValueError, match="which repeats an axis"):
        mpi4jax.axis_comm(mesh, ["i", "i"])


def test_computed_ranks_without_a_mesh():
    """In a plain program of this process, a rank may be computed as well."""

    def ring(x, rank):
        return mpi.sendrecv(x, x, (rank - 1) % SIZE, (rank + 1) % SIZE)

    def loss(x, rank):
        return jnp.sum(ring(x, rank) * WEIGHTS)

    own, rank = jnp.asarray(OWN), jnp.asarray(RANK)
    np.testing.assert_allclose(jax.jit(ring)(own, rank), WHOLE[RANK - 1][None])
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(own, rank), WEIGHTS[None])
    root = jnp.asarray(SIZE - 1)
    np.testing.assert_allclose(jax.jit(mpi.bcast)(own, root), WHOLE[-1:])
    summed = jax.jit(lambda x, root: mpi.reduce(x, MPI.SUM, root))(own, root)
    expected = WHOLE.sum(0)[None] if RANK == SIZE - 1 else OWN
    np.testing.assert_allclose(summed, expected)
