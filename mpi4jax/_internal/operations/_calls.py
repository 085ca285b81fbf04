"""Calls of operations by users, traced ones included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from mpi4jax._override import override

from ..arguments.checks import PLAIN_TYPES, array
from ..arguments.types import ArrayLike, PyTree, Status
from ..environment import settings
from ..layout.packing import Tree, is_tree, result_tree
from ..mpi import handles
from ..older_api.token import refuse_pair
from ..xla.jax_compat import trace_state_clean
from ._barrier import Barrier
from ._eager import ArrayOrLeaves, run_eagerly
from ._operation import Operation

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Call(Generic[R_co]):
    """A call of an operation whose arguments are checked, apart from the arrays.

    :meth:`run` makes it, and `nonblocking.requests.start_call` starts it.

    Arguments:
        function: The function of the user's, for errors.
        operation: The operation.
        operands: The arrays, or trees of them.

    """

    __slots__ = ("function", "operands", "operation", "step")

    def __init__(self, function: str, operation: Operation, *operands: PyTree) -> None:
        self.function = function
        self.operation = operation
        self.operands = operands
        #: A function of the result, with its other arguments.
        self.step: tuple[Callable[..., R_co], tuple[Any, ...], dict[str, Any]] | None = None

    def then(
        self, function: Callable[..., R_co], *arrays: Any, **params: Any
    ) -> Call[R_co]:
        """Set the function that is called with the result, `arrays` and `params`."""
        self.step = function, arrays, params
        return self

    def arrays(self) -> Sequence[ArrayLike] | None:
        """The operands, each of which has to be an array, or None if some are trees."""
        for operand in self.operands:
            if type(operand) not in PLAIN_TYPES:
                if any(map(is_tree, self.operands)):
                    return None
                # Ranks are last, and have no name.
                names = [*self.operation.operands, "ranks"]
                pairs = zip(names, self.operands, strict=False)
                return [array(self.function, name, x) for name, x in pairs]
        return self.operands

    def run(self) -> R_co:
        """The result."""
        operands = self.arrays()
        result: R_co
        if operands is None:
            result = self.with_leaves(self._run_leaves)
        elif trace_state_clean():
            result = run_eagerly(self.operation, operands)
        else:
            result = self.operation.call_in_program(*operands)
        if self.step is None:
            return result
        function, arrays, params = self.step
        result = function(result, *arrays, **params)
        return result

    def with_leaves(
        self, make: Callable[[Sequence[Tree], Sequence[ArrayOrLeaves]], T]
    ) -> T:
        """Make the call with the leaves of trees, and name the leaf that can't be sent.

        `make` gets the trees, and the operands with a list of leaves in place of each tree.
        All leaves have the same row counts.
        """
        operation, operands = self.operation, self.operands
        arrays, numbers = operation.split_operands(operands)
        for name, x in zip(operation.operands, operands, strict=False):
            refuse_pair(self.function, name, x)
        pairs = zip(operation.operands, arrays, strict=False)
        trees = [x if type(x) is Tree else Tree(name, x) for name, x in pairs]
        try:
            leaves = [tree.arrays(self.function) for tree in trees]
            if settings.check and operation.is_collective:
                self._compare(trees[0])
            return make(trees, [*leaves, *numbers])
        except TypeError as error:
            raise (self._wrong_leaf(trees) or error) from None

    def _compare(self, tree: Tree) -> None:
        """Compare the trees that all processes pass (MPI4JAX_CHECK)."""
        # Axes that belong to processes may differ between them, as on a scatter's root.
        skipped_axes, _ = self.operation.batch_axes()
        Barrier(self.operation.communicator, tree.digest(skipped_axes)).bind()

    def _wrong_leaf(self, trees: Sequence[Tree]) -> TypeError | None:
        """The error that names the path of the first leaf that can't be sent."""
        try:
            for tree in trees:
                for name, leaf in tree.named_arrays(self.function):
                    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
                    self.operation.check_dtype(self.function, name, dtype)
        except TypeError as error:
            return error
        return None

    def _run_leaves(
        self, trees: Sequence[Tree], operands: Sequence[ArrayOrLeaves]
    ) -> PyTree:
        if not any(tree.leaves for tree in trees):
            results = None
        elif trace_state_clean():
            results = run_eagerly(self.operation, operands)
        else:
            results = self.operation.apply_to_leaves(*operands)
        if not self.operation.has_result:
            return None
        return result_tree(trees[-1].structure, results or [])


@dataclass(frozen=True)
class ReceivingOperation(Operation):
    """An operation that receives one message."""

    #: Number of the status that MPI fills when the message arrives.
    status_number: int = field(default=handles.NO_STATUS, kw_only=True)

    @property
    @override
    def has_status(self) -> bool:
        return self.status_number != handles.NO_STATUS


def run_with_status(call: Call[T], status: Status) -> T:
    """The result of a call that receives. MPI fills a status that is not None."""
    if status is None:
        return call.run()
    function, operation = call.function, call.operation
    assert isinstance(operation, ReceivingOperation)
    refuse_status_of_trees(function, *call.operands)
    if not trace_state_clean():
        status_number = handles.status_number(function, status)
        call.operation = replace(operation, status_number=status_number)
        return call.run()
    status_number = handles.borrow_status_number(function, status)
    try:
        call.operation = replace(operation, status_number=status_number)
        # The status is filled when the call has run, and its number is free then.
        result: T = jax.block_until_ready(call.run())
        return result
    finally:
        handles.return_status_number(status_number)


def refuse_status_of_trees(function: str, *operands: PyTree) -> None:
    """Raise TypeError for a tree beside a status, as it may be several messages."""
    if any(map(is_tree, operands)):
        raise TypeError(
            f"{function} got a tree and a status, expected an array with the status: the "
            "leaves of a tree may be several messages, each of which has one"
        )
