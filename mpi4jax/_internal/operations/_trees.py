"""The trees that operands may be: their checks, and the errors that name a leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.dtypes import check_dtype, check_reduction
from ..environment import settings
from ..forms.token import refuse_pair
from ..layout.packing import Tree, is_tree
from ..mpi.handles import Communicator
from ._declaration import Declaration, get_operation


def call_with_trees(
    call: Callable[..., Any],
    operation: Declaration,
    communicator: Communicator,
    operands: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    """Call a function with the leaves of trees, and name the leaf that can't be sent.

    It gets the operation, the communicator, the trees, the operands with a list of leaves
    in place of each tree, and the parameters. Numbers of rows are those of all leaves.
    """
    first_count = len(operands) - operation.count_operands
    for name, x in zip(operation.operands, operands, strict=True):
        refuse_pair(operation.name, name, x)
    pairs = zip(operation.operands, operands[:first_count], strict=False)
    trees = [x if type(x) is Tree else Tree(name, x) for name, x in pairs]
    try:
        leaves = [tree.arrays(operation.name) for tree in trees]
        if settings.check and operation.is_collective:
            _compare(operation, communicator, trees[0], params)
        operands = *leaves, *operands[first_count:]
        return call(operation, communicator, trees, operands, params)
    except TypeError as error:
        raise (_wrong_leaf(operation, trees, params) or error) from None


def _compare(
    operation: Declaration, communicator: Communicator, tree: Tree, params: dict[str, Any]
) -> None:
    """Have all processes compare the trees that they pass (MPI4JAX_CHECK)."""
    # Axes that belong to processes may differ between them, as on the root of a scatter.
    skipped_axes, _ = operation.batch_axes(**params, communicator=communicator)
    get_operation("barrier").apply(
        structure=tree.digest(skipped_axes), communicator=communicator
    )


def _wrong_leaf(
    operation: Declaration, trees: Sequence[Tree], params: dict[str, Any]
) -> TypeError | None:
    """The error that names the path of the first leaf that can't be sent, if one can't."""
    try:
        for tree in trees:
            for name, leaf in tree.named_arrays(operation.name):
                dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
                check_dtype(operation.name, name, dtype)
                if "op_number" in params:
                    check_reduction(operation.name, params["op_number"], dtype, name)
    except TypeError as error:
        return error
    return None


def result_tree(structure: Any, results: Sequence[Any]) -> Any:
    """The tree of an operation's results, or None without results for its leaves."""
    if structure.num_leaves and not results:
        return None
    return jax.tree_util.tree_unflatten(structure, results)


def refuse_status_of_trees(function: str, *operands: Any) -> None:
    """Raise TypeError for a tree beside a status, as it may be several messages."""
    if any(map(is_tree, operands)):
        raise TypeError(
            f"{function} got a tree and a status, expected an array with the status: the "
            "leaves of a tree may be several messages, each of which has one"
        )
