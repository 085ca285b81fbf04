"""auto_tokenize, which put the operations of a function in order in mpi4jax 0.3."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax
from jax.tree_util import PyTreeDef

from ..arguments.checks import ARRAY_TYPES, PLAIN_TYPES, array
from ..xla.jax_compat import trace_state_clean

P = ParamSpec("P")
R = TypeVar("R")

#: The structure of arguments, which leaves are arrays, and the other leaves.
Fixed: TypeAlias = tuple[PyTreeDef, tuple[bool, ...], tuple[object, ...]]


def auto_tokenize(function: Callable[P, R]) -> Callable[P, R]:
    """Make the MPI operations of a function run in the order of the program.

    They also do so without it: inside of :func:`jax.jit` and other transformations, it has
    no effect. Called directly, the function is compiled as a whole.

    Arguments:
        function: A function that uses mpi4jax.

    Returns:
        A function with the same arguments and results.

    """

    @functools.wraps(function)
    def tokenized(*args: P.args, **kwargs: P.kwargs) -> R:
        if not trace_state_clean():
            return function(*args, **kwargs)
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        if not all(type(x) in PLAIN_TYPES for x in leaves):
            leaves = _checked(call.__name__, args, kwargs)
        is_dynamic = tuple(isinstance(leaf, ARRAY_TYPES) for leaf in leaves)
        dynamic = [x for x, d in zip(leaves, is_dynamic, strict=True) if d]
        static = tuple(x for x, d in zip(leaves, is_dynamic, strict=True) if not d)
        result: R = compiled((structure, is_dynamic, static), *dynamic)
        return result

    def call(fixed: Fixed, *dynamic: jax.Array) -> R:
        structure, is_dynamic, static = fixed
        rest, constant = iter(dynamic), iter(static)
        leaves = [next(rest) if d else next(constant) for d in is_dynamic]
        args, kwargs = jax.tree_util.tree_unflatten(structure, leaves)
        return function(*args, **kwargs)

    call.__name__ = getattr(function, "__name__", repr(function))  # for profiles
    compiled = jax.jit(call, static_argnums=0)
    return tokenized


def _checked(
    name: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[object]:
    """The leaves of a function's arguments, of which the arrays can be passed to JAX."""

    def argument(path: jax.tree_util.KeyPath[Any]) -> str:
        return ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])

    return [
        array(name, argument(path), x) if isinstance(x, ARRAY_TYPES) else x
        for path, x in jax.tree_util.tree_leaves_with_path((args, kwargs))
    ]
