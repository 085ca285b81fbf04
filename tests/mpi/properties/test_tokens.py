"""Tokens are accepted, given back, and carried through every transformation."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
import mpi4jax.experimental.notoken
from mpi4jax._internal.older_api.token import EmptyToken
from mpi4jax.experimental import tokens


def allreduce(x, token=None):
    return mpi4jax.allreduce(x, op=MPI.SUM, token=token)


def test_new_token():
    _, token = allreduce(jnp.ones(2))
    assert isinstance(token, EmptyToken)
    assert jax.tree_util.tree_leaves(token) == []
    assert token.block_until_ready() is token


def test_given_token_is_given_back():
    for token in (jax.lax.create_token(), EmptyToken()):
        assert allreduce(jnp.ones(2), token)[1] is token
        assert mpi4jax.barrier(token=token) is token


def test_send_and_barrier_return_the_token_alone(rank):
    token = mpi4jax.send(jnp.ones(2), MPI.PROC_NULL)
    assert isinstance(token, EmptyToken)
    assert isinstance(mpi4jax.barrier(token=token), EmptyToken)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_nonblocking_functions_return_a_token_if_they_are_given_one(transform, size):
    def with_token(x, token):
        request, first = mpi4jax.iallreduce(x, op=MPI.SUM, token=token)
        return *mpi4jax.wait(request, token=first), mpi4jax.ordering_barrier(x, token=token)

    for token in (EmptyToken(), mpi4jax.create_token()):
        total, last, (_, same) = transform(with_token)(jnp.ones(2), token)
        np.testing.assert_array_equal(total, size * np.ones(2))
        assert type(last) is type(same) is type(token)
    for none in ({}, {"token": None}):
        request = mpi4jax.iallreduce(jnp.ones(2), op=MPI.SUM, **none)
        assert isinstance(request, mpi4jax.Request)
        np.testing.assert_array_equal(mpi4jax.wait(request, **none), size * np.ones(2))
    pair, token = mpi4jax.overlap(lambda: 1, during=lambda: 2, token=EmptyToken())
    assert (pair, token) == ((1, 2), EmptyToken())
    with pytest.raises(
        TypeError, match="isend: `token` must be a token that an op.*, not 3$"
    ):
        mpi4jax.isend(jnp.ones(2), MPI.PROC_NULL, token=3)


def test_through_jit(size):
    @jax.jit
    def function(x, token):
        x, token = allreduce(x, token)
        return allreduce(x, token)

    for token in (EmptyToken(), jax.lax.create_token(), None):
        result, out = function(jnp.ones(2), token)
        np.testing.assert_array_equal(result, size**2 * np.ones(2))
        assert isinstance(out, EmptyToken) or out is not None


def test_through_loops_and_branches(size):
    @jax.jit
    def function(x):
        x, token = allreduce(x)
        x, token = jax.lax.fori_loop(0, 2, lambda i, xt: allreduce(*xt), (x, token))
        x, token = (
            jax.lax.while_loop(
                lambda xt: xt[0][0] < size**4, lambda xt: allreduce(*xt), (x, token)
            )
            if size > 1
            else (x, token)
        )
        (x, token), _ = jax.lax.scan(
            lambda xt, _: (allreduce(*xt), None), (x, token), None, length=2
        )
        return jax.lax.cond(
            x[0] > 0, lambda x, t: allreduce(x, t), lambda x, t: (x, t), x, token
        )

    result, token = function(jnp.ones(2))
    np.testing.assert_array_equal(result, size ** (7 if size > 1 else 0) * np.ones(2))
    assert isinstance(token, EmptyToken)


def test_through_vmap_and_grad(size):
    result, token = jax.vmap(allreduce, in_axes=(0, None))(jnp.ones((3, 2)), EmptyToken())
    np.testing.assert_array_equal(result, size * np.ones((3, 2)))
    assert isinstance(token, EmptyToken)

    def loss(x):
        y, token = allreduce(x)
        y, token = allreduce(y, token)
        return y.sum()

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones(2)), np.ones(2))


def test_wrong_token():
    text = (
        "^allreduce: `token` must be a token that an operation has returned, or None, not 3"
    )
    with pytest.raises(TypeError, match=text):
        allreduce(jnp.ones(2), token=3)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_program_without_tokens(transform):
    """The tuple goes into the next operation, which says what it is."""
    for token in (None, mpi4jax.create_token()):

        def program(x, token=token):
            y = tokens.allreduce(x, op=MPI.SUM, token=token)
            return tokens.bcast(y, 0)

        with pytest.raises(
            TypeError,
            match=r"(?s)bcast: `x` must be an array or a tree of arrays, not a pair .*"
            r"mpi4jax.notoken .* mpi4jax>=0.9, or .* MPI4JAX_API=notoken",
        ):
            transform(program)(jnp.ones(2))


def test_token_free_api_explains_itself():
    for module in (mpi4jax.notoken, mpi4jax.experimental.notoken):
        with pytest.raises(RuntimeError, match=r"(?s)token.*mpi4jax>=0\.8\.0"):
            module.allreduce(jnp.ones(2), op=MPI.SUM, token=None)
        assert module.barrier() is None


SIGNATURES = {
    "allgather": "(x, *, comm=None, token)",
    "allreduce": "(x, op, *, comm=None, token)",
    "alltoall": "(x, *, comm=None, token)",
    "barrier": "(*, comm=None, token)",
    "bcast": "(x, root, *, comm=None, token)",
    "gather": "(x, root, *, comm=None, token)",
    "recv": "(x, source=ANY_SOURCE, *, tag=ANY_TAG, comm=None, status=None, token)",
    "reduce": "(x, op, root, *, comm=None, token)",
    "scan": "(x, op, *, comm=None, token)",
    "scatter": "(x, root, *, comm=None, token)",
    "send": "(x, dest, *, tag=0, comm=None, token)",
    "sendrecv": "(sendbuf, recvbuf, source, dest, *, sendtag=0, recvtag=ANY_TAG, "
    "comm=None, status=None, token)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    expected = SIGNATURES[name]
    for constant in ("ANY_SOURCE", "ANY_TAG"):
        expected = expected.replace(constant, str(int(getattr(MPI, constant))))
    for function, token in (
        (getattr(mpi4jax, name), "token=None"),
        (getattr(mpi4jax.notoken, name), "token=NOTSET"),
    ):
        signature = inspect.signature(function)
        bare = signature.replace(
            parameters=[
                p.replace(annotation=inspect.Parameter.empty)
                for p in signature.parameters.values()
            ],
            return_annotation=inspect.Signature.empty,
        )
        assert str(bare) == expected.replace("token)", f"{token})")
        assert ("token (Token)" in function.__doc__) == (token == "token=None")


def test_capitalised_names(rank, size):
    comm = MPI.COMM_WORLD
    with pytest.warns(FutureWarning, match="use mpi4jax.allreduce instead"):
        result, token = mpi4jax.Allreduce(jnp.ones(2), MPI.SUM, comm)
    assert result[0] == size
    with pytest.warns(FutureWarning):
        assert mpi4jax.Bcast(jnp.float32(rank), 0, comm, token)[0] == 0
    with pytest.warns(FutureWarning):
        assert mpi4jax.Sendrecv(jnp.float32(rank), jnp.float32(0), rank, rank)[0] == rank
    if size > 1 and rank < 2:
        talk = (
            (lambda: mpi4jax.Send(jnp.float32(5), 1, 3, comm, token))
            if rank == 0
            else (lambda: mpi4jax.Recv(jnp.float32(0), 0, 3, comm)[0])
        )
        with pytest.warns(FutureWarning):
            assert talk() == (token if rank == 0 else 5)
    with pytest.raises(AttributeError, match="no attribute 'Gather'"):
        mpi4jax.Gather  # noqa: B018
