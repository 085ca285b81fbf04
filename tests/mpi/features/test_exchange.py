"""Several messages at once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE

pytestmark = pytest.mark.usefixtures("enable_x64")
compiled = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


def of_all_types(rank):
    """A tree whose leaves have words of 1, 2, 4 and 8 bytes."""
    return {
        "float64": jnp.arange(5.0) + rank,
        "float32": jnp.ones((2, 3), jnp.float32) * (rank + 1),
        "complex128": jnp.array(1 + 2j * rank),
        "complex64": jnp.array([rank + 1j], jnp.complex64),
        "bool": jnp.array([True, False, rank % 2 == 0]),
        "int8": jnp.array([-rank, 7], jnp.int8),
        "int64": jnp.array([[2**40 + rank]]),
        "bfloat16": jnp.array([rank + 0.5], jnp.bfloat16),
        "int4": jnp.array([rank % 8, -1, 3], jnp.int4),
        "empty": jnp.zeros((0, 2), jnp.int16),
    }


def assert_equal(actual, expected):
    def check(path, x, y):
        assert x.dtype == y.dtype, path
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=str(path))

    jax.tree_util.tree_map_with_path(check, actual, expected)


@compiled
@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_arrays_of_any_types_are_one_message(transform, count):
    # Every combination of `count` types, or a sample of them.
    names = list(of_all_types(0))
    chosen = list(itertools.combinations(names, count))[:: 1 if count < 3 else 40]

    def parts(rank):
        return [{name: of_all_types(rank)[name] for name in some} for some in chosen]

    to_right = transform(
        lambda sent: mpi.exchange(
            sent, sent, [LEFT] * len(sent), [RIGHT] * len(sent), comm=comm
        )
    )
    assert_equal(to_right(parts(RANK)), parts(LEFT))


@compiled
def test_both_directions_and_more_than_one_message_to_a_process(transform):
    tree = of_all_types(RANK)

    def both(tree):
        return mpi.exchange(
            {"right": tree, "left": tree, "again": [tree["bool"]]},
            {"from left": tree, "from right": tree, "again": tree["bool"]},
            {"from left": LEFT, "from right": RIGHT, "again": LEFT},
            {"right": RIGHT, "left": LEFT, "again": RIGHT},
            sendtag={"right": 1, "left": 2, "again": 1},
            recvtag={"from left": 1, "from right": 2, "again": 1},
            comm=comm,
        )

    received = transform(both)(tree)
    # Of two with one tag, "again" is the first one in the trees of both sides.
    assert_equal(received["again"], of_all_types(LEFT)["bool"])
    assert_equal(received["from left"], of_all_types(LEFT))
    assert_equal(received["from right"], of_all_types(RIGHT))


@compiled
def test_nobody_sends_and_receives_nothing(transform):
    x = [jnp.ones(2) * RANK, {"a": jnp.zeros(3), "b": jnp.arange(4)}]
    nobody = MPI.PROC_NULL
    swap = transform(
        lambda x: mpi.exchange(x, x, [nobody, LEFT], [nobody, RIGHT], comm=comm)
    )
    assert_equal(swap(x), x)
    assert mpi.exchange([], [], [], [], comm=comm) == []
    assert mpi.exchange([x], [], [], [nobody], comm=comm) == []


@compiled
def test_in_a_loop_in_a_branch_and_mapped(transform):
    def shift(x):
        return mpi.exchange([x, -x], [x, x], [LEFT, RIGHT], [RIGHT, LEFT], comm=comm)

    def loop(x):
        return jax.lax.fori_loop(0, SIZE, lambda _, x: shift(x)[0], x)

    x = jnp.arange(3.0) + RANK
    assert_equal(transform(loop)(x), x)
    branch = transform(lambda x: jax.lax.cond(x[0] > -1, shift, lambda x: [x, x], x))
    assert_equal(branch(x), [jnp.arange(3.0) + LEFT, -jnp.arange(3.0) - RIGHT])
    mapped = transform(jax.vmap(shift, in_axes=1, out_axes=1))
    from_left, from_right = mapped(jnp.stack([x, 2 * x], 1))
    assert_equal(from_left, (jnp.arange(3.0) + LEFT)[:, None] * jnp.array([1.0, 2.0]))
    assert_equal(from_right, -(jnp.arange(3.0) + RIGHT)[:, None] * jnp.array([1.0, 2.0]))


def adjoint_identity(function, x, y):
    """The scalar products of all ranks that a transpose makes equal."""

    def product(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        own = sum(float(jnp.sum(p * q)) for p, q in pairs)
        return comm.allreduce(own)

    _, push = jax.linearize(function, x)
    _, pull = jax.vjp(function, x)
    (back,) = pull(y)
    return product(push(x), y), product(x, back)


@compiled
def test_cotangents_go_back(transform):
    end = RANK == SIZE - 1
    generator = np.random.default_rng(RANK)

    def some(*shape):
        return jnp.asarray(generator.normal(size=shape))

    def function(x):
        # An integer travels along, which has no derivative. The line is open at its ends.
        return mpi.exchange(
            [(x["a"], jnp.arange(3)), x["b"]],
            [(x["c"], jnp.arange(3)), x["b"]],
            [LEFT if RANK > 0 else MPI.PROC_NULL, RIGHT],
            [MPI.PROC_NULL if end else RIGHT, LEFT],
            sendtag=[5, 6],
            recvtag=[5, 6],
            comm=comm,
        )

    def floats(x):
        (a, _), b = function(x)
        return a, b

    x = {"a": some(3, 2), "b": some(4), "c": some(3, 2)}
    y = some(3, 2), some(4)
    there, back = adjoint_identity(transform(floats), x, y)
    assert there == pytest.approx(back, rel=1e-12, abs=1e-12)
    tangents = jax.jvp(transform(floats), (x,), (x,))[1]
    assert_equal(tangents, floats(x))


def test_second_derivatives():
    def loss(x):
        a, b = mpi.exchange([x, x**2], [x, x], [LEFT, RIGHT], [RIGHT, LEFT], comm=comm)
        return jnp.sum(a**3 + a * b)

    x = jnp.arange(1.0, 4.0) + RANK
    derivative = jax.jit(jax.jvp, static_argnums=0)(jax.grad(loss), (x,), (x,))[1]
    step = 1e-6
    expected = (jax.grad(loss)(x * (1 + step)) - jax.grad(loss)(x * (1 - step))) / (
        2 * step
    )
    np.testing.assert_allclose(derivative, expected, rtol=1e-6)


@pytest.mark.ranks(2)
def test_the_other_side_may_be_another_call():
    x = jnp.arange(4.0) + 10 * RANK
    if RANK == 0:
        first, second = mpi.exchange(
            [x, 2 * x], [x, x], [1, 1], [1, 1], sendtag=[3, 4], recvtag=[5, 6], comm=comm
        )
    elif RANK == 1:
        second_there = mpi.recv(x, 0, tag=4, comm=comm)
        first_there = np.empty(4)
        comm.Recv(first_there, 0, 3)
        comm.Send(np.asarray(x), 0, 6)
        mpi.send(2 * x, 0, tag=5, comm=comm)
        np.testing.assert_array_equal(first_there, np.arange(4.0))
        np.testing.assert_array_equal(second_there, 2 * np.arange(4.0))
    if RANK == 0:
        np.testing.assert_array_equal(first, 2 * (np.arange(4.0) + 10))
        np.testing.assert_array_equal(second, np.arange(4.0) + 10)


@compiled
def test_wildcards(transform):
    x = jnp.arange(3) + RANK
    anyone = [MPI.ANY_SOURCE]
    receive = transform(
        lambda x: mpi.exchange([x], [x], anyone, [RIGHT], recvtag=MPI.ANY_TAG, comm=comm)
    )
    assert_equal(receive(x), [jnp.arange(3) + LEFT])
    comm.Barrier()


def test_wildcards_have_no_way_back():
    x = jnp.ones(2)

    def loss(x, **tags):
        (y,) = mpi.exchange([x], [x], [LEFT], [RIGHT], comm=comm, **tags)
        return jnp.sum(y)

    with pytest.raises(NotImplementedError, match="ANY_TAG can't be differentiated in rev"):
        jax.grad(lambda x: loss(x, recvtag=MPI.ANY_TAG))(x)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"source": [0]},
            ValueError,
            r"got \[0\] for argument `source`, expected a rank, or ",
        ),
        ({"dest": {"a": 0}}, ValueError, r"with which the tree in `sendbuf` begins: "),
        ({"source": None}, TypeError, "`source` must be an integer, not None$"),
        ({"dest": [0, 1.5]}, TypeError, "`dest` must be an integer, not 1.5$"),
        (
            {"sendtag": [1]},
            ValueError,
            "expected a tag, or a tree of tags like that of ranks",
        ),
        ({"recvtag": "a"}, TypeError, "`recvtag` must be an integer, not 'a'$"),
        (
            {"sendbuf": [1.0, "a"]},
            TypeError,
            r"`sendbuf\[1\]` must be an array or a number",
        ),
        ({"comm": 3}, TypeError, "`comm` must be an MPI communicator such as .*, not 3$"),
    ],
)
def test_errors(arguments, error, text):
    x = [jnp.ones(2), jnp.ones(3)]
    usual = {"sendbuf": x, "recvbuf": x, "source": [LEFT] * 2, "dest": [RIGHT] * 2}
    with pytest.raises(error, match=text):
        mpi.exchange(**{**usual, **arguments})


def test_with_tokens():
    from mpi4jax.experimental import tokens

    x = [jnp.ones(2) * RANK]
    received, token = tokens.exchange(x, x, [LEFT], [RIGHT], comm=comm)
    received, token = tokens.exchange(received, x, [RIGHT], [LEFT], comm=comm, token=token)
    assert_equal(received, x)
    token.block_until_ready()
