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

from . import jax_compat
from .flush import flush
from .jax_compat import Tracer
from .validation import check

P = ParamSpec("P")
R = TypeVar("R")


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


def with_tokens(form: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the form with tokens of an operation from the one without.

    It decorates a function without a body, which has the signature.
    """
    function: Any = inspect.unwrap(form)

    def decorate(declaration: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(declaration)
        def with_token(*args: Any, token: Any = None, **kwargs: Any) -> Any:
            if token is None:
                token = _TOKEN
            else:
                check(function.__name__, "token", TOKEN_TYPES, token)
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
