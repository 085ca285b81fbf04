"""Eager calls: programs that do nothing but one operation, each compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..arguments.checks import PLAIN_TYPES, array
from ..layout.packing import Tree, is_tree, packed_groups, unpack_groups
from ..mpi import handles
from ..mpi.handles import Communicator
from ..xla import call_sites
from ..xla.jax_compat import has_mesh, trace_state_clean, without_mesh
from ._declaration import Declaration
from ._trees import call_with_trees, refuse_status_of_trees, result_tree

T = TypeVar("T")

_classes: list[Any] = []
_wrappers: list[Callable[[Callable[..., Any]], Any]] = []


def on_own_devices(function: Callable[..., T]) -> Callable[..., T]:
    """Have a function run on the devices of its arguments where it is called eagerly.

    A mesh that is set is for programs on several processes.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if not (has_mesh() and trace_state_clean()):
            return function(*args, **kwargs)
        with without_mesh():
            return function(*args, **kwargs)

    return call


def makes_eager_calls(cls: type[T]) -> type[T]:
    """Mark a class whose method `_run` makes calls outside of any program."""
    marked: Any = cls
    call_sites.mark_eager(marked._run)
    marked._run = on_own_devices(marked._run)
    for wrapper in _wrappers:
        marked._run = wrapper(marked._run)
    _classes.append(marked)
    return cls


def wrap_eager_calls(wrapper: Callable[[Callable[..., Any]], Any]) -> None:
    """Put a function around all eager calls from now on."""
    _wrappers.append(wrapper)
    for cls in _classes:
        cls._run = wrapper(cls._run)


#: What is called in place of all operations, if it is not None.
_start: ContextVar[Callable[..., Any] | None] = ContextVar("start", default=None)


class Starting:
    """Has calls start operations.

    Arguments:
        start: Gets the operation, and what it is called with. None has calls made again.

    """

    def __init__(self, start: Callable[..., Any] | None) -> None:
        self._value = start

    def __enter__(self) -> None:
        self._token = _start.set(self._value)

    def __exit__(self, *_: object) -> None:
        _start.reset(self._token)


@makes_eager_calls
class EagerCalls(Declaration):
    """The calls of an operation by a user, traced ones included."""

    def __call__(self, communicator: Communicator, *operands: Any, **params: Any) -> Any:
        """Call MPI for a user, whose arrays are still to be checked."""
        start = _start.get()
        if start is not None:
            return start(self, communicator, *operands, **params)
        for operand in operands:
            if type(operand) not in PLAIN_TYPES:
                if any(map(is_tree, operands)):
                    call = EagerCalls._call_with_leaves
                    return call_with_trees(call, self, communicator, operands, params)
                pairs = zip(self.operands, operands, strict=True)
                operands = tuple(array(self.name, name, x) for name, x in pairs)
                break
        if not trace_state_clean():
            return self.apply(*operands, **params, communicator=communicator)
        return self._run(communicator, *operands, **params)

    def _call_with_leaves(
        self,
        communicator: Communicator,
        trees: Sequence[Tree],
        operands: Sequence[Any],
        params: dict[str, Any],
    ) -> Any:
        if not any(tree.leaves for tree in trees):
            results: Any = None
        elif trace_state_clean():
            results = self._run(communicator, *operands, **params)
        else:
            results = self.apply_to_leaves(*operands, **params, communicator=communicator)
        return result_tree(trees[-1].structure, results or []) if self.has_result else None

    def apply_to_leaves(self, *operands: Any, **params: Any) -> list[Any]:
        """Call MPI for a list of leaves in place of each operand that is an array.

        Returns:
            The results for the leaves of the last one, or an empty list without results.

        """
        first_count = len(operands) - self.count_operands
        axis, result_axis = self.batch_axes(**params)
        results = []
        for packed, group in packed_groups(operands[:first_count], axis):
            result = self.apply_packed(*packed, *operands[first_count:], **params)
            if result is not None and group.indices:
                results.append((group, result))
        return unpack_groups(results, axis, result_axis)

    def call_with_status(
        self, communicator: Communicator, *operands: Any, status: Any, **params: Any
    ) -> Any:
        """Call MPI for a user, and have it fill `status` if this is not None."""
        if status is not None:
            refuse_status_of_trees(self.name, *operands)
        if status is None or not trace_state_clean():
            status_number = handles.status_number(self.name, status)
            return self(communicator, *operands, status_number=status_number, **params)
        status_number = handles.borrow_status_number(self.name, status)
        try:
            # The status is filled when the call has run, and its number is free then.
            return jax.block_until_ready(
                self(communicator, *operands, status_number=status_number, **params)
            )
        finally:
            handles.return_status_number(status_number)

    def evaluate(
        self, *operands: Any, communicator: Communicator, **params: Any
    ) -> list[Any]:
        """The results of a primitive that is bound outside of a trace."""
        # Also under jax.disable_jit: an operation can only run compiled.
        with jax.disable_jit(False):
            result = self._run(communicator, *operands, **params)
        return [] if result is None else [result]

    def _run(self, communicator: Communicator, *operands: Any, **params: Any) -> Any:
        # Rules of JAX's give the parameters in any order.
        compiled = communicator.programs.get((self, frozenset(params.items())))
        if compiled is None:
            compiled = self._compile(communicator, params)
        program, forwarded = compiled
        result = program(*operands)
        if type(result) is not tuple:
            return result
        # No result that the caller could wait for, so the call itself waits.
        result[0].block_until_ready()
        if forwarded is None:
            return None
        operand = operands[forwarded]
        return (
            list(map(_as_array, operand)) if type(operand) is list else _as_array(operand)
        )

    def _compile(self, communicator: Communicator, params: dict[str, Any]) -> Any:
        """A jitted function that does only this operation, and its forwarded operand.

        If MPI writes nothing, the function gives a tuple of something to wait for. Nor does
        it give the operand that is the result: XLA would copy it.
        """
        forwarded = self.forwarded_operand(**params, communicator=communicator)

        def run(*operands: Any) -> Any:
            # A list has the leaves of a tree.
            is_list = bool(operands) and type(operands[0]) is list
            apply = self.apply_to_leaves if is_list else self.apply
            result = apply(*operands, **params, communicator=communicator)
            has_result = forwarded is None and bool(jax.tree_util.tree_leaves(result))
            return result if has_result else (jnp.zeros((), bool),)

        call_sites.mark_eager(run)
        run.__name__ = self.name  # for profiles and compilation caches
        compiled = jax.jit(run), forwarded
        communicator.programs[(self, frozenset(params.items()))] = compiled
        return compiled


def _as_array(x: Any) -> Any:
    # JAX takes 10 us to find that an array is one.
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
