"""Tokens: the API of mpi4jax 0.2 to 0.7, on top of the functions without them.

The order of operations does not depend on tokens. They are accepted and given back so that
programs that pass them from call to call run unchanged.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.checks import check
from ..arguments.types import Token
from ..xla import jax_compat
from ..xla.flush import flush
from ..xla.jax_compat import Tracer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class EmptyToken:
    """The token that an operation returns if none was passed.

    A pytree without leaves, which passes through jit, loops, branches, vmap and grad.
    """

    def block_until_ready(self) -> EmptyToken:
        """Wait until all operations called so far are done."""
        flush()
        return self

    def __repr__(self) -> str:
        return "Token()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmptyToken)

    def __hash__(self) -> int:
        return hash(EmptyToken)


_EMPTY_TOKEN = EmptyToken()


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
        like: The array, or tree of arrays, that is differentiated. A process that only
            receives has to pass it, unless it differentiates the array that it passes to
            ``recv``, or the token itself. The values are not used.

    """
    leaves = map(jnp.asarray, jax.tree_util.tree_leaves(like))
    return LinearToken(leaf_after(jnp.zeros(0, jnp.float32), *leaves))


def leaf_after(leaf: Any, *arrays: Any) -> Any:
    """Make a token's leaf depend on arrays, to be differentiated and mapped with them."""
    for x in arrays:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            leaf = leaf + jnp.sum(jnp.ravel(x)[:0]).real.astype(leaf.dtype)
        else:
            # No derivative, but a batch if the array is one.
            leaf = leaf + jnp.zeros_like(jnp.ravel(x)[:0], leaf.dtype).sum()
    return leaf


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
    linear_token: Any = token
    # The leaf has no elements.
    zero = jnp.sum(linear_token.leaf)

    def tie_array(x: Any) -> Any:
        x = jnp.asarray(x)
        has_derivative = jnp.issubdtype(x.dtype, jnp.inexact)
        # Linear in both.
        return x + zero.astype(x.dtype) if has_derivative else x

    return jax.tree_util.tree_map(tie_array, value)


jax.tree_util.register_pytree_node(
    EmptyToken, lambda _: ((), None), lambda *_: _EMPTY_TOKEN
)

#: The types of tokens that operations take, and these types in words.
TOKEN = (
    (type(None), EmptyToken, LinearToken, jax_compat.Token, Tracer),
    "a token that an operation has returned, or None",
)


class NotSet:
    """The default of `token`, where None would be a token that was passed."""

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


def refuse_pair(function: str, argument: str, x: Any) -> None:
    """Explain to programs without tokens why they got a tuple of a result and a token."""
    if type(x) is tuple and len(x) == 2 and isinstance(x[1], (EmptyToken, LinearToken)):
        raise TypeError(
            f"{function}: `{argument}` must be an array or a tree of arrays, not a pair "
            "(result, token). In the API of mpi4jax<0.8, operations return such pairs:\n"
            "    result, token = mpi4jax.allgather(x)\n"
            "For programs without tokens, import mpi4jax.notoken in place of mpi4jax, "
            "install mpi4jax>=0.9, or set the environment variable MPI4JAX_API=notoken"
        )


def without_tokens(function: Callable[P, R]) -> Callable[P, R]:
    """Make the form without tokens of an operation. It explains why it takes none."""

    @functools.wraps(function)
    def without_token(*args: Any, token: Any = NOTSET, **kwargs: Any) -> Any:
        if token is not NOTSET:
            raise_if_token_is_set(token, function.__name__)
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    set_signature(without_token, add_token(signature, default=NOTSET))
    return without_token


def with_tokens(
    form: Callable[..., Any], linear: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Make the form with tokens of an operation.

    Arguments:
        form: The form without tokens.
        linear: The form for a :class:`LinearToken`, which takes this token first. By
            default, the operation is called as with other tokens.

    """
    function: Any = inspect.unwrap(form)

    @functools.wraps(function)
    def with_token(*args: Any, token: Any = None, **kwargs: Any) -> Any:
        if token is None:
            token = _EMPTY_TOKEN
        else:
            check(function.__name__, "token", *TOKEN, token)
        if linear is not None and type(token) is LinearToken:
            return linear(token, *args, **kwargs)
        result = function(*args, **kwargs)
        return token if result is None else (result, token)

    signature = signature_with_token(inspect.signature(function))
    has_result = signature.return_annotation != "Token"
    with_token.__doc__ = _describe(function.__doc__, _describe_pair if has_result else None)
    set_signature(with_token, signature)
    return with_token


def with_optional_token(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the form with tokens of a function that returns a token only if it takes one."""

    @functools.wraps(function)
    def with_token(*args: Any, token: Any = None, **kwargs: Any) -> Any:
        if token is None:
            return function(*args, **kwargs)
        check(function.__name__, "token", *TOKEN, token)
        return function(*args, **kwargs), token

    with_token.__doc__ = _describe(function.__doc__ or "", _describe_optional_pair)
    signature = inspect.signature(function)
    result = signature.return_annotation
    signature = signature.replace(return_annotation=f"{result} | tuple[{result}, Token]")
    set_signature(with_token, add_token(signature, default=None, annotation=_TOKEN_OR_NONE))
    return with_token


def is_operation(function: Callable[..., Any]) -> bool:
    """Whether a function of the API without tokens came out of :func:`without_tokens`."""
    return "token" in inspect.signature(function).parameters


def signature_with_token(signature: inspect.Signature) -> inspect.Signature:
    """The signature that an operation has in its form with tokens."""
    result = signature.return_annotation
    returned = "Token" if result == "None" else f"tuple[{result}, Token]"
    signature = signature.replace(return_annotation=returned)
    return add_token(signature, default=None, annotation=_TOKEN_OR_NONE)


_TOKEN_OR_NONE = "Token | None"


def add_token(signature: inspect.Signature, **properties: Any) -> inspect.Signature:
    """A signature with a further parameter, `token`."""
    token = inspect.Parameter("token", inspect.Parameter.KEYWORD_ONLY, **properties)
    return signature.replace(parameters=[*signature.parameters.values(), token])


_TOKEN_ARGUMENT = """\
        token (Token): Accepted and returned, for programs that pass it from call to
            call. Operations run in program order with and without it.
"""

_TOKEN_RESULT = "The given token, or a new one."


def _describe(docstring: str, describe_result: Callable[[str], str] | None) -> str:
    """Add the token to a docstring's arguments and results."""
    head, _, result = docstring.partition("\n    Returns:\n")
    result = re.sub(r"\s+", " ", result).strip()
    result = describe_result(result) if describe_result else _TOKEN_RESULT
    return f"{head.rstrip()}\n{_TOKEN_ARGUMENT}\n    Returns:\n        {result}\n\n    "


def _describe_pair(result: str) -> str:
    items = [_fill(text, first="        - ") for text in (result, _TOKEN_RESULT)]
    return "\n".join(["A tuple of two.\n", *items])


def _describe_optional_pair(result: str) -> str:
    return _fill(f"{result} With a token, a tuple of this and the token.").lstrip()


def _fill(text: str, first: str = " " * 8) -> str:
    """A text in lines, of which the others are indented like the text of the first."""
    return textwrap.fill(
        text,
        width=92,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def set_signature(function: Any, signature: inspect.Signature) -> None:
    """Set the signature that :mod:`inspect` shows, and the annotations."""
    function.__signature__ = signature
    annotations = {name: p.annotation for name, p in signature.parameters.items()}
    annotations["return"] = signature.return_annotation
    empty = inspect.Signature.empty
    function.__annotations__ = {n: a for n, a in annotations.items() if a is not empty}
