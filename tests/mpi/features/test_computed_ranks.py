"""Ranks that a compiled program computes, in all forms of the operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax.experimental import tokens

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
NULL = MPI.PROC_NULL
#: The neighbors of each rank on a line that ends, and on a ring.
LINE = (RANK - 1 if RANK > 0 else NULL, RANK + 1 if RANK < SIZE - 1 else NULL)
RING = ((RANK - 1) % SIZE, (RANK + 1) % SIZE)

pytestmark = pytest.mark.usefixtures("enable_x64")
on_both = pytest.mark.parametrize("ranks", [LINE, RING], ids=["line", "ring"])


def of(rank):
    """A tree of arrays that travel in groups of different words."""
    return {
        "bfloat16": jnp.array([rank + 0.5, 1], jnp.bfloat16),
        "bool": jnp.array([rank % 2 == 0, True]),
        "complex": jnp.array([[rank + 1j]]),
        "empty": jnp.zeros((0, 2)),
        "float": jnp.arange(3.0) + rank,
        "int4": jnp.array(rank % 8, jnp.int4),
    }


def expected_from(source):
    return of(100 + RANK if source == NULL else source)


def assert_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


WAYS = {
    "sendrecv": lambda x, y, source, dest: mpi.sendrecv(x, y, source, dest, comm=comm),
    "isendrecv": lambda x, y, source, dest: mpi.wait(
        mpi.isendrecv(x, y, source, dest, comm=comm)
    ),
    "exchange": lambda x, y, source, dest: mpi.exchange(x, y, source, dest, comm=comm),
    "iexchange": lambda x, y, source, dest: mpi.wait(
        mpi.iexchange(x, y, source, dest, comm=comm)
    ),
    "token": lambda x, y, source, dest: tokens.sendrecv(
        x, y, source, dest, comm=comm, token=jax.lax.create_token()
    )[0],
    "overlap": lambda x, y, source, dest: mpi.overlap(
        lambda: mpi.exchange(x, y, source, dest, comm=comm), during=lambda: 0
    )[0],
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
@on_both
def test_trees(way, ranks):
    result = jax.jit(WAYS[way])(of(RANK), of(100 + RANK), *map(jnp.int32, ranks))
    assert_equal(result, expected_from(ranks[0]))


@on_both
def test_halves(ranks):
    """The one is sent, and the other received, both at once and started."""

    @jax.jit
    def function(x, y, source, dest):
        request = mpi.isend(x, dest, tag=1, comm=comm)
        received = mpi.wait(mpi.irecv(y, source, tag=1, comm=comm))
        mpi.wait(request)
        request = mpi.isend(x, dest, tag=2, comm=comm)
        blocking = mpi.recv(y, source, tag=2, comm=comm)
        mpi.wait(request)
        return received, blocking

    sent, buffer = of(RANK)["float"], of(100 + RANK)["float"]
    for result in function(sent, buffer, *map(jnp.int32, ranks)):
        assert_equal(result, expected_from(ranks[0])["float"])


@on_both
def test_messages_of_both_directions(ranks):
    """Some ranks are computed, and others are known."""
    left, right = ranks

    @jax.jit
    def function(x, right):
        buffers = [-x, -x, (-x, -x)]
        sent = [x, 2 * x, (3 * x, 4 * x)]
        sources, dests = [left, right, NULL], [right, left, NULL]
        tags = {"sendtag": [1, 2, 3], "recvtag": [1, 2, 3]}
        return mpi.exchange(sent, buffers, sources, dests, **tags, comm=comm)

    x = jnp.arange(3.0) + RANK + 1
    from_left, from_right, (first, second) = function(x, jnp.int32(right))
    np.testing.assert_array_equal(
        from_left, jnp.arange(3.0) + left + 1 if left >= 0 else -x
    )
    np.testing.assert_array_equal(
        from_right, 2 * (jnp.arange(3.0) + right + 1) if right >= 0 else -x
    )
    np.testing.assert_array_equal(first, -x)
    np.testing.assert_array_equal(second, -x)


@ways
@on_both
def test_derivatives(way, ranks):
    """What was sent has the cotangent of what was received, and a buffer its own."""
    left, right = ranks

    def function(x, y):
        return WAYS[way](x, y, *map(jnp.int32, ranks))

    x, y = jnp.arange(3.0) + RANK, jnp.arange(3.0) - RANK
    cotangent = jnp.array([1.0, 10.0, 100.0]) * (RANK + 1)
    result, pull = jax.vjp(jax.jit(function), x, y)
    of_x, of_y = jax.jit(pull)(cotangent)
    np.testing.assert_array_equal(
        of_x, cotangent / (RANK + 1) * (right + 1) if right >= 0 else np.zeros(3)
    )
    np.testing.assert_array_equal(of_y, cotangent if left == NULL else np.zeros(3))
    tangents = x + 1, y + 1
    _, tangent = jax.jvp(jax.jit(function), (x, y), tangents)
    np.testing.assert_array_equal(
        tangent, tangents[1] if left == NULL else x - RANK + left + 1
    )
    np.testing.assert_array_equal(tangent, result + 1)


@ways
def test_batches(way):
    """A batch is one message. Computed ranks that differ within it can't be."""

    def function(x, source, dest):
        return WAYS[way](x, -x, source, dest)

    x = jnp.arange(6.0).reshape(2, 3) + 10 * RANK
    ranks = list(map(jnp.int32, LINE))
    mapped = jax.jit(jax.vmap(function, (0, None, None)))
    expected = -x if LINE[0] == NULL else x - 10
    np.testing.assert_array_equal(mapped(x, *ranks), expected)


def test_members_with_ranks_of_their_own():
    """One call for each, unless it is started: that is one message."""
    mapped = jax.vmap(lambda x, left, right: WAYS["sendrecv"](x, -x, left, right))
    x = jnp.arange(6.0).reshape(2, 3) + 10 * RANK
    lefts, rights = (jnp.array([rank, NULL], jnp.int32) for rank in RING)
    expected = jnp.stack([x[0] + 10 * (RING[0] - RANK), -x[1]])
    np.testing.assert_array_equal(jax.jit(mapped)(x, lefts, rights), expected)

    started = jax.vmap(lambda x, left, right: WAYS["isendrecv"](x, -x, left, right))
    with pytest.raises(
        NotImplementedError, match="isendrecv was mapped by jax.vmap over a"
    ):
        jax.jit(started)(x, lefts, rights)


@pytest.mark.parametrize("root", [0, SIZE - 1])
def test_roots(root):
    """With a computed root, blocking and started: as with the known one, on root."""
    x = jnp.arange(3.0) + RANK
    stack = jnp.arange(3.0 * SIZE).reshape(SIZE, 3) * (root == RANK)

    @jax.jit
    def function(x, stack, root):
        return [
            (mpi.bcast(x, root), mpi.wait(mpi.ibcast(x, root))),
            (mpi.reduce(x, MPI.SUM, root), mpi.wait(mpi.ireduce(x, MPI.SUM, root))),
            (mpi.gather(x, root), mpi.wait(mpi.igather(x, root))),
            (mpi.scatter(stack, root), mpi.wait(mpi.iscatter(stack, root))),
        ]

    rows = np.arange(3.0) + np.arange(SIZE)[:, None]
    expected = [
        rows[root],
        rows.sum(0) if root == RANK else x,
        rows * (root == RANK),
        3.0 * RANK + np.arange(3.0),
    ]
    results = function(x, stack, jnp.int32(root))
    for (blocking, started), value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(blocking, value)
        np.testing.assert_array_equal(started, value)
