"""Tokens: the API of mpi4jax 0.2 to 0.7, on top of the functions without them.

The order of operations does not depend on tokens. They are accepted and given back so that
programs that pass them from call to call run unchanged.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.checks import check
from ..xla import jax_compat
from ..xla.flush import flush
from ..xla.jax_compat import Tracer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Token:
    """The token that an operation returns if none was passed.

    A pytree without leaves, which passes through jit, loops, branches, vmap and grad.
    """

    def block_until_ready(self) -> Token:
        """Wait until all operations called so far are done."""
        flush()
        return self

    def __repr__(self) -> str:
        return "Token()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token)

    def __hash__(self) -> int:
        return hash(Token)


_TOKEN = Token()


@jax.tree_util.register_pytree_node_class
class LinearToken:
    """A token that carries derivatives from call to call: see :func:`create_token`.

    A pytree with one leaf, an array without elements. JAX differentiates it like any other.
    """

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf

    def block_until_ready(self) -> LinearToken:
        """Wait until all operations called so far are done."""
        flush()
        return self

    def __repr__(self) -> str:
        return "LinearToken()"

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.leaf,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple[Any]) -> LinearToken:
        return cls(*leaves)


def create_token(like: Any = ()) -> LinearToken:
    """Make a token that carries derivatives through :func:`send` and :func:`recv`.

    Pass it from call to call, and to :func:`tie` at the end. The derivative of a message
    then takes the way of the message, in the opposite direction in reverse mode, and the
    messages of the derivative are sent in the order of the tokens.

    Arguments:
        like: What is differentiated: an array, or a tree of arrays. A process that only
            receives has to pass it, unless it differentiates the array that it passes to
            ``recv``, or the token itself. The values are not used.

    """
    leaves = map(jnp.asarray, jax.tree_util.tree_leaves(like))
    return LinearToken(leaf_after(jnp.zeros(0, jnp.float32), *leaves))


def leaf_after(leaf: Any, *arrays: Any) -> Any:
    """The leaf of a token, which depends on arrays as well, for derivatives and maps."""
    for x in arrays:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            leaf = leaf + jnp.sum(jnp.ravel(x)[:0]).real.astype(leaf.dtype)
        else:
            # No derivative, but a batch if the array is one.
            leaf = leaf + jnp.zeros_like(jnp.ravel(x)[:0], leaf.dtype).sum()
    return leaf


def tie(value: T, token: AnyToken) -> T:
    """Make a value depend on the calls that a token has passed through, for derivatives.

    When a process differentiates a value (its loss), JAX differentiates only the calls that
    the value depends on. A process that only sends has to add this dependency.

    Arguments:
        value: An array, or a tree of arrays. Those of a float or complex type are tied.
        token (LinearToken): The token that the last of these calls returned.

    Returns:
        The value, unchanged.

    """
    check("tie", "token", (LinearToken,), token)
    given: Any = token
    nothing = jnp.sum(given.leaf)

    def tied(x: Any) -> Any:
        x = jnp.asarray(x)
        is_linear = jnp.issubdtype(x.dtype, jnp.inexact)
        # A sum, as it is linear in both. Nothing is added to what is a zero, or none.
        return x + nothing.astype(x.dtype) if is_linear else x

    return jax.tree_util.tree_map(tied, value)


jax.tree_util.register_pytree_node(Token, lambda _: ((), None), lambda *_: _TOKEN)

TOKEN_TYPES = (type(None), Token, LinearToken, jax_compat.Token, Tracer)


class AnyToken(Protocol):
    """What operations take and give back as a token: our own, or one that JAX has made."""

    def block_until_ready(self) -> Any: ...


class NotSet:
    """Stands for a token that was not passed."""

    def __repr__(self) -> str:
        return "NOTSET"


NOTSET = NotSet()


def raise_if_token_is_set(token: Any, function: str = "this operation") -> None:
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


def without_tokens(function: Callable[P, R]) -> Callable[P, R]:
    """Make the form without tokens of an operation, which explains itself if given one."""

    @functools.wraps(function)
    def without_token(*args: Any, token: Any = NOTSET, **kwargs: Any) -> Any:
        if token is not NOTSET:
            raise_if_token_is_set(token, function.__name__)
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    token = inspect.Parameter("token", inspect.Parameter.KEYWORD_ONLY, default=NOTSET)
    parameters = [*signature.parameters.values(), token]
    set_signature(without_token, signature.replace(parameters=parameters))
    return without_token


def with_tokens(
    form: Callable[..., Any], linear: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the form with tokens of an operation from the one without.

    It decorates a function without a body, which has the signature.

    Arguments:
        form: The form without tokens.
        linear: What is called in its place if the token is a :class:`LinearToken`: a
            function of that token and the other arguments, which gives what the form with
            tokens gives. By default, the operation is called as ever.

    """
    function: Any = inspect.unwrap(form)

    def decorate(declaration: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(declaration)
        def with_token(*args: Any, token: Any = None, **kwargs: Any) -> Any:
            if token is None:
                token = _TOKEN
            else:
                check(function.__name__, "token", TOKEN_TYPES, token)
            if linear is not None and type(token) is LinearToken:
                return linear(token, *args, **kwargs)
            result = function(*args, **kwargs)
            return token if result is None else (result, token)

        with_token.__name__ = with_token.__qualname__ = function.__name__
        has_result = function.__annotations__["return"] != "None"
        with_token.__doc__ = _describe(function.__doc__, has_result=has_result)
        return with_token

    return decorate


_TOKEN_ARGUMENT = """\
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.
"""


def _describe(docstring: str, *, has_result: bool) -> str:
    """Add the token to a docstring's arguments and results."""
    head, _, results = docstring.partition("\n    Returns:\n")
    head = head.rstrip() + "\n" + _TOKEN_ARGUMENT
    given = "The given token, or a new one."
    if has_result:
        text = re.sub(r"\s+", " ", results).strip()
        given = f"A tuple of two.\n\n        - {text}\n        - {given}"
    return f"{head}\n    Returns:\n        {given}\n"


def set_signature(function: Any, signature: inspect.Signature) -> None:
    function.__signature__ = signature
