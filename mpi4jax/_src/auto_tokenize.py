"""auto_tokenize: a function whose MPI operations JAX dispatches on its fast path."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from .effects import as_block
from .jax_compat import trace_state_clean
from .validation import ARRAY_TYPES

P = ParamSpec("P")
R = TypeVar("R")


def auto_tokenize(function: Callable[P, R]) -> Callable[P, R]:
    """Compile the MPI operations of a function into a block of its own.

    The result computes what ``function`` does, with its operations in the same order. A
    jitted function that consists of it, ``jax.jit(auto_tokenize(function))``, is called
    at the speed of one without MPI operations.

    Apply it to the outermost function: its operations are ordered among themselves, and
    against others at the top level of the same jitted function, but they can't be part of
    a loop, a branch or an inner jitted function outside of it. Where the order could not
    be kept, compiling raises a RuntimeError. Under ``jax.grad`` and ``jax.vmap`` it does
    nothing.

    Arguments:
        function: A function that uses mpi4jax.

    Returns:
        A function with the same arguments and results.

    """
    name = getattr(function, "__name__", repr(function))

    @functools.wraps(function)
    def tokenized(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        is_dynamic = tuple(isinstance(leaf, ARRAY_TYPES) for leaf in leaves)
        dynamic = [x for x, d in zip(leaves, is_dynamic, strict=True) if d]
        static = tuple(x for x, d in zip(leaves, is_dynamic, strict=True) if not d)
        call = compiled if trace_state_clean() else block
        return call((structure, is_dynamic, static), *dynamic)

    def block(fixed: tuple[Any, ...], *dynamic: Any) -> Any:
        structure, is_dynamic, static = fixed

        def run(*dynamic: Any) -> Any:
            rest, constant = iter(dynamic), iter(static)
            leaves = [next(rest) if d else next(constant) for d in is_dynamic]
            args, kwargs = jax.tree_util.tree_unflatten(structure, leaves)
            return function(*args, **kwargs)

        return as_block(run, name)(*dynamic)

    block.__name__ = name  # for profiles and compilation caches
    compiled = jax.jit(block, static_argnums=0)
    return tokenized
