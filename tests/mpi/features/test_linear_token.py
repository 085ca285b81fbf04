"""send and recv with a token that derivatives follow, against the same by sendrecv."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
from mpi4jax.experimental import tokens as mpi

pytestmark = [pytest.mark.usefixtures("enable_x64"), pytest.mark.ranks(2)]

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
NULL = MPI.PROC_NULL

comes_back = pytest.mark.skipif(
    jax.__version_info__ < (0, 8),
    reason="older JAX does not come back to what the result does not depend on",
)

both = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


def array(seed, shape=(3,)):
    generator = np.random.default_rng([seed, RANK])
    return jnp.asarray(generator.uniform(0.5, 2, shape))


def one_way(x):
    """Rank 0 sends f(x), and rank 1 computes the loss."""
    token = mpi4jax.create_token(x)
    if RANK == 0:
        token = mpi.send(jnp.sin(x), 1, token=token)
        return mpi4jax.tie(0.0, token)
    if RANK == 1:
        y, token = mpi.recv(x, 0, token=token)
        return jnp.sum(y**2)
    return 0.0 * jnp.sum(x)


def composition(x):
    return jnp.sum(jnp.sin(x) ** 2)


def shift(x, token, to=RIGHT, source=LEFT, **tags):
    """To the right, or to where it is said, whatever MPI buffers."""
    if RANK == 0:
        token = mpi.send(x, to, token=token, **tags)
        return mpi.recv(x, source, token=token, **tags)
    y, token = mpi.recv(x, source, token=token, **tags)
    return y, mpi.send(x, to, token=token, **tags)


def by_sendrecv(x, to=RIGHT, source=LEFT):
    return mpi4jax.notoken.sendrecv(x, x, source, to)


def with_token(function):
    """A function of an array, from one of an array and a token."""

    def call(x):
        y, token = function(x, mpi4jax.create_token(x))
        return mpi4jax.tie(y, token)

    return call


@both
def test_the_gradient_is_that_of_the_composition(transform):
    x = COMM.bcast(array(1))
    gradient = transform(jax.grad(one_way))(x)
    expected = jax.grad(composition)(x) if RANK == 0 else jnp.zeros(3)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


@both
def test_forward_mode(transform):
    x, t = COMM.bcast((array(1), array(2)))
    value, tangent = transform(lambda x, t: jax.jvp(one_way, (x,), (t,)))(x, t)
    expected = jax.jvp(composition, (x,), (t,)) if RANK == 1 else (0.0, 0.0)
    np.testing.assert_allclose((value, tangent), expected, rtol=1e-12)
    _, push = jax.linearize(one_way, x)
    np.testing.assert_allclose(push(t), expected[1], rtol=1e-12)


def test_second_derivatives():
    x, t = COMM.bcast((array(1), array(2)))

    def slope(function, x):
        return jnp.vdot(jax.grad(function)(x), t)

    # Forward over reverse mode, and reverse over forward mode.
    _, of_gradient = jax.jvp(jax.grad(one_way), (x,), (t,))
    _, expected = jax.jvp(jax.grad(composition), (x,), (t,))
    np.testing.assert_allclose(of_gradient, expected if RANK == 0 else 0 * x, rtol=1e-12)
    of_slope = jax.grad(lambda x: jax.jvp(one_way, (x,), (t,))[1])(x)
    expected = jax.grad(lambda x: slope(composition, x))(x)
    np.testing.assert_allclose(of_slope, expected if RANK == 0 else 0 * x, rtol=1e-12)


def test_a_receiver_with_parameters_of_its_own():
    """The operand is a constant, but the token depends on the differentiated argument."""
    x, w = COMM.bcast((array(1), array(2)))

    def loss(parameters):
        token = mpi4jax.create_token(parameters)
        if RANK == 0:
            return mpi4jax.tie(0.0, mpi.send(parameters["x"] ** 2, 1, token=token))
        if RANK == 1:
            y, _ = mpi.recv(np.zeros(3), 0, token=token)
            return jnp.vdot(parameters["w"], y)
        return 0.0

    gradient = jax.grad(loss)({"x": x, "w": w})
    of_x, of_w = jax.grad(lambda x, w: jnp.vdot(w, x**2), (0, 1))(x, w)
    np.testing.assert_allclose(gradient["x"], of_x if RANK == 0 else 0 * x, rtol=1e-12)
    np.testing.assert_allclose(gradient["w"], of_w if RANK == 1 else 0 * x, rtol=1e-12)


def test_a_token_that_is_differentiated_itself():
    """Then it may be made outside, and of nothing."""
    token = mpi4jax.create_token()
    x = COMM.bcast(array(1))

    def loss(x, token):
        if RANK == 0:
            return mpi4jax.tie(0.0, mpi.send(x**3, 1, token=token))
        if RANK == 1:
            return jnp.sum(mpi.recv(np.zeros(3), 0, token=token)[0])
        return 0.0

    gradient, of_token = jax.grad(loss, (0, 1))(x, token)
    np.testing.assert_allclose(gradient, 3 * x**2 if RANK == 0 else 0 * x, rtol=1e-12)
    assert isinstance(of_token, mpi4jax.LinearToken)
    assert of_token.leaf.shape == (0,)


def several(x, token):
    """Messages of different sizes to both sides, with tags and without."""
    y, token = shift(x, token)
    z, token = shift(jnp.cos(y[:2]), token, tag=3)
    u, token = shift(jnp.concatenate([y, z]), token, LEFT, RIGHT)
    return u * jnp.sum(z), token


def several_by_sendrecv(x):
    y = by_sendrecv(x)
    z = by_sendrecv(jnp.cos(y[:2]))
    return by_sendrecv(jnp.concatenate([y, z]), LEFT, RIGHT) * jnp.sum(z)


def in_scan(x, token):
    def step(carry, _):
        x, token = carry
        y, token = shift(jnp.sin(x), token)
        z, token = shift(x, token, LEFT, RIGHT)
        return (y * z, token), None

    return jax.lax.scan(step, (x, token), None, length=SIZE + 1)[0]


def in_scan_by_sendrecv(x):
    def step(x, _):
        return by_sendrecv(jnp.sin(x)) * by_sendrecv(x, LEFT, RIGHT), None

    return jax.lax.scan(step, x, None, length=SIZE + 1)[0]


def in_cond(x, token):
    def shifted(x, token):
        return shift(x**2, token)

    return jax.lax.cond(jnp.sum(x) > -1, shifted, lambda x, token: (x, token), x, token)


PROGRAMS = {
    "ring": (shift, by_sendrecv),
    "several": (several, several_by_sendrecv),
    "scan": (in_scan, in_scan_by_sendrecv),
    "cond": (in_cond, lambda x: by_sendrecv(x**2)),
    "checkpoint": (jax.checkpoint(several), several_by_sendrecv),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    """Values, derivatives both ways, maps of them: all as by sendrecv."""
    ours, reference = PROGRAMS[name]

    def all_of(f, x, t, c, xs):
        y, pull = jax.vjp(f, x)

        def loss(x):
            return jnp.sum(f(x) ** 2)

        return (
            y,
            pull(c(y)),
            jax.jvp(f, (x,), (t,)),
            jax.vmap(f)(xs),
            jax.vmap(jax.grad(loss))(xs),
            # The cotangent of such a loss is not mapped over, but the message is.
            jax.vmap(jax.grad(lambda x: jnp.sum(f(x))))(xs),
            jax.grad(lambda xs: jnp.sum(jax.vmap(loss)(xs)))(xs),
        )

    def cotangent(y):
        return jnp.cos(jnp.arange(y.size) + RANK).reshape(y.shape)

    @jax.jit
    def together(x, t, xs):
        return [all_of(f, x, t, cotangent, xs) for f in (with_token(ours), reference)]

    result, expected = together(array(1), array(2), array(3, (4, 3)))
    for actual, wanted in zip(
        jax.tree.leaves(result), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["several", "scan"])
def test_adjointness(name):
    function = with_token(PROGRAMS[name][0])
    x, t = array(1), array(2)
    y, push = jax.linearize(function, x)
    cotangent = array(3, y.shape)
    (back,) = jax.vjp(function, x)[1](cotangent)
    left = COMM.allreduce(float(jnp.vdot(push(t), cotangent)))
    right = COMM.allreduce(float(jnp.vdot(t, back)))
    assert abs(left - right) < 1e-12 * abs(left)


def test_messages(sequence_of):
    """Those of the derivative, in reverse order, by counterparts. A batch is one."""

    def loss(x):
        token = mpi4jax.create_token(x)
        if RANK == 0:
            token = mpi.send(x, 1, token=token)
            y, token = mpi.recv(x, 1, token=token)
        elif RANK == 1:
            y, token = mpi.recv(x, 0, token=token)
            token = mpi.send(y, 0, token=token)
        else:
            return jnp.sum(x)
        return mpi4jax.tie(jnp.sum(y**2), token)

    expected = [["Send", "Recv", "Send", "Recv"], ["Recv", "Send", "Recv", "Send"]]
    expected = {0: expected[0], 1: expected[1]}.get(RANK, [])
    for function, x in (
        (jax.grad(loss), array(1)),
        (jax.jit(jax.grad(loss)), array(1)),
        (jax.vmap(jax.grad(loss)), array(1, (2, 3))),
        (jax.jit(jax.vmap(jax.grad(loss), 1, 1)), array(1, (3, 2))),
    ):
        gradient, sequence = sequence_of(function, x)
        assert sequence == expected
        # Rank 0's loss and rank 1's have its square.
        factor = {0: 4.0, 1: 0.0}.get(RANK)
        expected_gradient = jnp.ones_like(x) if factor is None else factor * x
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12)


def test_who_maps_over_what():
    """An array that is not mapped over goes with the token of one that is."""
    xs = array(1, (4, 3))

    def function(x):
        token = mpi4jax.create_token(x)
        y, token = shift(x, token)
        z, token = shift(jnp.ones(2), token)
        return mpi4jax.tie(jnp.sum(y) * jnp.sum(z), token)

    everyones = COMM.allgather(np.asarray(xs))
    result = jax.jit(jax.vmap(function))(xs)
    np.testing.assert_allclose(result, 2 * everyones[LEFT].sum(1), rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(jax.grad(function))(xs), 2.0, rtol=1e-12)


def test_other_operations_give_the_token_back():
    def function(x, token):
        x, token = mpi.allreduce(x, MPI.SUM, token=token)
        x, token = shift(x, token)
        x, token = mpi.bcast(x, 0, token=token)
        return x, mpi.barrier(token=token)

    x = array(1)
    token = mpi4jax.create_token(x)
    assert mpi.barrier(token=token) is token
    assert token.block_until_ready() is token
    result, token = jax.jit(function)(x, token)
    assert repr(token) == "LinearToken()"
    np.testing.assert_allclose(result, COMM.allreduce(np.asarray(x)), rtol=1e-12)


def test_messages_to_nobody():
    """The array that is lent comes back, and its cotangent with it."""

    def function(x):
        token = mpi4jax.create_token(x)
        token = mpi.send(x, NULL, token=token)
        y, token = mpi.recv(3 * x, NULL, token=token)
        return mpi4jax.tie(jnp.sum(y**2), token)

    x = array(1)
    np.testing.assert_allclose(jax.grad(function)(x), 18 * x, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(function)(x), 9 * jnp.sum(x**2), rtol=1e-12)


def test_integers_are_constants(calls_of):
    """They are sent as they are, and nothing with their derivative."""

    def function(x):
        token = mpi4jax.create_token(x)
        n, token = shift(jnp.arange(3) + RANK, token)
        return mpi4jax.tie(jnp.sum(n * x), token)

    gradient, calls = calls_of(jax.jit(jax.grad(function)), array(1))
    np.testing.assert_array_equal(gradient, np.arange(3.0) + LEFT)
    assert calls == Counter(Send=1, Recv=1)


def test_status():
    status = MPI.Status()

    def function(x):
        token = mpi4jax.create_token(x)
        if RANK == 0:
            token = mpi.send(x, RIGHT, tag=RANK + 4, token=token)
        y, token = mpi.recv(x, LEFT, tag=LEFT + 4, token=token, status=status)
        if RANK != 0:
            token = mpi.send(x, RIGHT, tag=RANK + 4, token=token)
        return mpi4jax.tie(jnp.sum(y), token)

    np.testing.assert_allclose(jax.grad(function)(array(1)), 1.0)
    # The cotangent comes from the other side, with another tag.
    assert (status.Get_source(), status.Get_tag()) == (LEFT, LEFT + 4)


@both
def test_ranks_and_tags_out_of_range(transform):
    def sent(x):
        mpi.send(x, -9, token=mpi4jax.create_token(x))

    def received(x):
        return mpi.recv(x, MPI.PROC_NULL, tag=-5, token=mpi4jax.create_token(x))[0]

    for function, text in (
        (sent, "send got -9 for argument `dest`, expected a rank of the communicator"),
        (received, "recv got -5 for argument `tag`, expected a tag"),
    ):
        with pytest.raises(ValueError, match=text):
            transform(function)(array(1))


def test_tie():
    token = mpi4jax.create_token()
    tree = {"a": jnp.asarray([1.0, -2.0]), "b": (1j, np.int32(3), 2.5)}
    tied = mpi4jax.tie(tree, token)
    jax.tree.map(np.testing.assert_array_equal, tied, tree)
    assert [x.dtype for x in jax.tree.leaves(tied)] == [
        jnp.asarray(x).dtype for x in jax.tree.leaves(tree)
    ]
    assert mpi4jax.create_token({"a": 1, "b": [jnp.ones(2), 1j]}).leaf.shape == (0,)
    for other in (None, mpi.barrier(), 3):
        with pytest.raises(
            TypeError,
            match=r"tie: `token` must be one of mpi4jax.create_token\(\), not",
        ):
            mpi4jax.tie(1.0, other)


@comes_back
@both
def test_a_program_that_forgets_to_tie(transform):
    """JAX comes back to the send all the same, as that has an effect."""

    def loss(x):
        token = mpi4jax.create_token(x)
        if RANK == 0:
            mpi.send(x, 1, token=token)
        elif RANK == 1:
            return jnp.sum(mpi.recv(x, 0, token=token)[0] ** 2)
        return 0.0 * x[0]

    x = COMM.bcast(array(1))
    gradient = transform(jax.grad(loss))(x)
    expected = 2 * x if RANK == 0 else 0 * x
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


@comes_back
@both
@pytest.mark.parametrize("construct", ["scan", "jit", "cond"])
def test_forgetting_to_tie_elsewhere(construct, transform):
    def loss(x):
        token = mpi4jax.create_token(x)
        if RANK > 1:
            return 0.0 * x[0]

        def message(x):
            if RANK == 0:
                mpi.send(x, 1, token=token)
                return 0.0
            return jnp.sum(mpi.recv(x, 0, token=token)[0] ** 2)

        if construct == "scan":
            return jax.lax.scan(lambda c, _: (c + message(x), None), 0.0, None, length=2)[0]
        if construct == "cond":
            return jax.lax.cond(x[0] > 0, message, lambda x: 0.0, x)
        return jax.jit(message)(x)

    x = COMM.bcast(array(1))
    gradient = transform(jax.grad(loss))(x)
    factor = 4 if construct == "scan" else 2
    expected = factor * x if RANK == 0 else 0 * x
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_forgetting_to_tie_in_a_checkpoint(sequence_of):
    """There JAX drops what the result does not depend on: the gradient lacks a part.

    The cotangent that the other process sends has nobody to receive it.
    """
    comm = COMM.Dup()

    @jax.checkpoint
    def message(x):
        token = mpi4jax.create_token(x)
        if RANK == 0:
            mpi.send(x, 1, comm=comm, token=token)
            return 0.0
        if RANK == 1:
            return jnp.sum(mpi.recv(x, 0, comm=comm, token=token)[0] ** 2)
        return 0.0 * x[0]

    x = COMM.bcast(array(1))
    gradient, sequence = sequence_of(jax.grad(message), x)
    np.testing.assert_array_equal(gradient, np.zeros(3))
    assert sequence == {0: ["Send"], 1: ["Recv", "Send"]}.get(RANK, [])
    if RANK == 0:
        left = np.empty(3)
        comm.Recv(left, 1)
        np.testing.assert_array_equal(left, 2 * x)
    comm.Free()


def test_without_a_linear_token_the_error_says_what_to_do():
    text = r"can't be differentiated: .* Pass a token of mpi4jax.create_token\(\)"
    calls = {
        "send": lambda x, token: mpi.send(x, RIGHT, token=token),
        "recv": lambda x, token: mpi.recv(x, LEFT, token=token),
    }
    for token in (None, jax.lax.create_token()):
        for name, call in calls.items():

            def loss(x, call=call, token=token):
                call(x, token)
                return x.sum()

            with pytest.raises(NotImplementedError, match=f"{name} {text}"):
                jax.grad(loss)(jnp.ones(3))


def test_the_gradient_needs_to_know_the_source():
    def loss(x):
        y, token = mpi.recv(x, token=mpi4jax.create_token(x))
        return mpi4jax.tie(jnp.sum(y), token)

    text = "recv with source=MPI.ANY_SOURCE can't be differentiated in reverse mode"
    with pytest.raises(NotImplementedError, match=text):
        # Traced only: nothing is received.
        jax.make_jaxpr(jax.grad(loss))(jnp.ones(3))


def test_jacfwd():
    text = "with a token can't be used with jax.jacfwd"
    with pytest.raises(RuntimeError, match=text):
        jax.jit(jax.jacfwd(with_token(shift))).lower(jnp.ones(2))


def test_where_they_are():
    """The operations with tokens are there in both versions, under this name."""
    from mpi4jax.experimental import tokens

    assert mpi.__all__ == tokens.__all__
    assert mpi.send is tokens.send
    assert mpi4jax.experimental.tokens is mpi
    with pytest.raises(
        RuntimeError, match="mpi4jax.experimental.tokens has the operations"
    ):
        mpi4jax.notoken.send(jnp.ones(2), RIGHT, token=mpi4jax.create_token())
