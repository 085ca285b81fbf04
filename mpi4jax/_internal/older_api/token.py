"""Tokens: the API of mpi4jax 0.2 to 0.7, on top of the functions without them.

The order of operations does not depend on tokens. They are accepted and given back so that
programs that pass them from call to call run unchanged.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.checks import check
from ..arguments.types import Array, ArrayLike, PyTree, Token, Unchecked
from ..xla import jax_compat
from ..xla.dependence import depend
from ..xla.flush import flush
from ..xla.jax_compat import Tracer

T = TypeVar("T")


class EmptyToken:
    """The token that an operation returns if none was passed.

    A pytree without leaves, which passes through jit, loops, branches, vmap and grad.
    """

    def block_until_ready(self) -> EmptyToken:
        """Wait until all operations called so far are done."""
        flush()
        return self

    @override
    def __repr__(self) -> str:
        return "Token()"

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmptyToken)

    @override
    def __hash__(self) -> int:
        return hash(EmptyToken)


_EMPTY_TOKEN = EmptyToken()


@jax.tree_util.register_pytree_node_class
class LinearToken:
    """A token that carries derivatives from call to call: see :func:`create_token`.

    A pytree with one leaf, an array without elements. JAX differentiates it like any other.
    """

    def __init__(self, leaf: Array) -> None:
        self.leaf = leaf

    def block_until_ready(self) -> LinearToken:
        """Wait until all operations called so far are done."""
        flush()
        return self

    @override
    def __repr__(self) -> str:
        return "LinearToken()"

    def tree_flatten(self) -> tuple[tuple[Array], None]:
        return (self.leaf,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple[Array]) -> LinearToken:
        return cls(*leaves)


def create_token(like: PyTree = ()) -> LinearToken:
    """Make a token that carries derivatives through :func:`send` and :func:`recv`.

    Pass it from call to call, and to :func:`tie` at the end. The derivative of a message
    then takes the way of the message, in the opposite direction in reverse mode, and the
    messages of the derivative are sent in the order of the tokens.

    Arguments:
        like: The array, or tree of arrays, that is differentiated. A process that only
            receives has to pass it, unless it differentiates the array that it passes to
            ``recv``, or the token itself. The values are not used.

    """
    leaves = map(jnp.asarray, jax.tree_util.tree_leaves(like))
    return LinearToken(depend(jnp.zeros(0, jnp.float32), *leaves))


def tie(value: T, token: Token) -> T:
    """Make a value depend on the calls that a token has passed through, for derivatives.

    When a process differentiates a value (its loss), JAX differentiates only the calls that
    the value depends on. A process that only sends has to add this dependency.

    Arguments:
        value: An array, or a tree of arrays. Those of a float or complex type are tied.
        token (LinearToken): The token that the last of these calls returned.

    Returns:
        The value, unchanged.

    """
    check("tie", "token", (LinearToken,), "one of mpi4jax.create_token()", token)
    linear_token: Unchecked = token
    # The leaf has no elements.
    zero = jnp.sum(linear_token.leaf)

    def tie_array(x: ArrayLike) -> Array:
        x = jnp.asarray(x)
        has_derivative = jnp.issubdtype(x.dtype, jnp.inexact)
        # Linear in both.
        return x + zero.astype(x.dtype) if has_derivative else x

    tied: T = jax.tree_util.tree_map(tie_array, value)
    return tied


jax.tree_util.register_pytree_node(
    EmptyToken, lambda _: ((), None), lambda *_: _EMPTY_TOKEN
)

#: The types of tokens that operations take, and these types in words.
TOKEN = (
    (type(None), EmptyToken, LinearToken, jax_compat.Token, Tracer),
    "a token that an operation has returned, or None",
)


def check_token(function: str, token: Token | None) -> None:
    check(function, "token", *TOKEN, token)


def checked_token(function: str, token: Token | None) -> Token:
    """The token that was passed to a function, or a new one."""
    if token is None:
        return _EMPTY_TOKEN
    check_token(function, token)
    return token


def and_token(result: T, token: Token | None) -> Any:
    """The result, with the token if one was passed."""
    return result if token is None else (result, token)


class NotSet:
    """The default of `token`, where None would be a token that was passed."""

    @override
    def __repr__(self) -> str:
        return "NOTSET"


NOTSET = NotSet()


def raise_if_token_is_set(token: object, function: str = "this operation") -> None:
    """Explain to programs for mpi4jax 0.7 why there are no tokens."""
    if token is NOTSET:
        return
    if type(token) is LinearToken:
        raise RuntimeError(
            f"{function} got a token, but this form of it takes none: "
            "mpi4jax.experimental.tokens has the operations that do"
        )
    raise RuntimeError(
        f"{function} got a token, but this is the API of mpi4jax>=0.8.0, which has "
        "none: explicit token management is not supported, operations are "
        "ordered automatically.\n"
        "Adjust the code like this:\n"
        f"    # mpi4jax<0.8.0:\n"
        f"    result, token = mpi4jax.allgather(x, token=token)\n"
        f"    # mpi4jax>=0.8.0:\n"
        f"    result = mpi4jax.allgather(x)\n"
        "or set the environment variable MPI4JAX_API=token, or install mpi4jax<0.8."
    )


def refuse_pair(function: str, argument: str, x: object) -> None:
    """Explain to programs without tokens why they got a tuple of a result and a token."""
    if type(x) is tuple and len(x) == 2 and isinstance(x[1], (EmptyToken, LinearToken)):
        raise TypeError(
            f"{function}: `{argument}` must be an array or a tree of arrays, not a pair "
            "(result, token). In the API of mpi4jax<0.8, operations return such pairs:\n"
            "    result, token = mpi4jax.allgather(x)\n"
            "For programs without tokens, import mpi4jax.notoken in place of mpi4jax, "
            "install mpi4jax>=0.9, or set the environment variable MPI4JAX_API=notoken"
        )
