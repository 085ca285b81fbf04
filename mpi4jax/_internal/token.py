"""Tokens: the API of mpi4jax 0.2 to 0.7, on top of the functions without them.

The order of operations does not depend on tokens. They are accepted and given back so that
programs that pass them from call to call run unchanged.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax

from . import jax_compat
from .flush import flush
from .jax_compat import Tracer
from .validation import check


class Token:
    """What an operation without a given token returns as one.

    A pytree without leaves: it goes through jit, loops, branches, vmap and grad as it is.
    """

    def block_until_ready(self) -> Token:
        """Wait until all operations that were called are done."""
        flush()
        return self

    def __repr__(self) -> str:
        return "Token()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token)

    def __hash__(self) -> int:
        return hash(Token)


_TOKEN = Token()

jax.tree_util.register_pytree_node(Token, lambda _: ((), None), lambda *_: _TOKEN)

TOKEN_TYPES = (type(None), Token, jax_compat.Token, Tracer)


class _NotSet:
    """Stands for a token that was not passed."""

    def __repr__(self) -> str:
        return "NOTSET"


NOTSET = _NotSet()


def _with_parameter(function: Callable[..., Any], default: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    token = inspect.Parameter("token", inspect.Parameter.KEYWORD_ONLY, default=default)
    parameters = [*signature.parameters.values(), token]
    return signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )


_TOKEN_ARGUMENT = """\
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.
"""


def _describe(docstring: str, *, returns_array: bool) -> str:
    """Add the token to a docstring's arguments and results."""
    head, _, results = docstring.partition("\n    Returns:\n")
    head = head.rstrip() + "\n" + _TOKEN_ARGUMENT
    given = "The given token, or a new one."
    if returns_array:
        text = re.sub(r"\s+", " ", results).strip()
        given = f"A tuple of two.\n\n        - {text}\n        - {given}"
    return f"{head}\n    Returns:\n        {given}\n"


def with_tokens(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the token form of an operation: takes a token, and returns one as well."""

    @functools.wraps(function)
    def with_token(*args: Any, token: Any = None, **kwargs: Any) -> Any:
        if token is None:
            token = _TOKEN
        else:
            check(function.__name__, "token", TOKEN_TYPES, token)
        result = function(*args, **kwargs)
        return token if result is None else (result, token)

    with_token.__signature__ = _with_parameter(function, None)  # type: ignore[attr-defined]
    with_token.__doc__ = _describe(
        function.__doc__ or "",
        returns_array=inspect.signature(function).return_annotation != "None",
    )
    return with_token


def without_tokens(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the token-free form of an operation, which explains itself if given one."""

    @functools.wraps(function)
    def without_token(*args: Any, token: Any = NOTSET, **kwargs: Any) -> Any:
        if token is not NOTSET:
            name = function.__name__
            raise RuntimeError(
                f"{name} got a token, but this is the API of mpi4jax>=0.8.0, which has "
                "none: explicit token management is not supported, operations are "
                "ordered automatically.\n"
                "Adjust the code like this:\n"
                f"    # mpi4jax<0.8.0:\n"
                f"    result, token = mpi4jax.allgather(x, token=token)\n"
                f"    # mpi4jax>=0.8.0:\n"
                f"    result = mpi4jax.allgather(x)\n"
                "or set the environment variable MPI4JAX_API=token."
            )
        return function(*args, **kwargs)

    without_token.__signature__ = _with_parameter(function, NOTSET)  # type: ignore[attr-defined]
    return without_token
