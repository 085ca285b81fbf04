"""Operations on the leaves of trees, in as few calls as pay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.dtypes import check_dtype, check_reduction
from ..layout.packing import Tree, group, is_tree, pack, unpack
from ..mpi.handles import Communicator
from ._declaration import Declaration, get_operation


def apply_to_leaves(
    operation: Declaration, *operands: Sequence[Any], **params: Any
) -> list[Any]:
    """Call MPI for packed groups of the leaves of a tree for each operand.

    Numbers of rows are those of all leaves.

    Returns:
        The results for the leaves of the last tree, or an empty list if there are none.

    """
    axis, result_axis = operation.batch_axes(**params)
    first_count = len(operands) - operation.count_operands
    trees = [list(map(jnp.asarray, leaves)) for leaves in operands[:first_count]]
    results: dict[int, Any] = {}
    # Operands may differ in their leaves, and take different numbers of calls.
    for indices in itertools.zip_longest(*(group(leaves, axis) for leaves in trees)):
        groups = [
            None if positions is None else [leaves[n] for n in positions]
            for leaves, positions in zip(trees, indices, strict=True)
        ]
        packed = [None if leaves is None else pack(leaves, axis) for leaves in groups]
        result = operation.apply_packed(*packed, *operands[first_count:], **params)
        if result is None or groups[-1] is None:
            continue
        unpacked = unpack(result, groups[-1], axis, result_axis)
        results.update(zip(indices[-1], unpacked, strict=True))
    return [results[index] for index in sorted(results)]


def compare_trees(
    operation: Declaration, communicator: Communicator, tree: Tree, params: dict[str, Any]
) -> None:
    """Have all processes compare the trees that they pass (MPI4JAX_CHECK)."""
    # Axes that belong to processes may differ between them, as on the root of a scatter.
    skipped_axes, _ = operation.batch_axes(**params, communicator=communicator)
    get_operation("barrier").apply(
        structure=tree.digest(skipped_axes), communicator=communicator
    )


def wrong_leaf(
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


def result_tree(tree: Tree, results: Sequence[Any] | None) -> Any:
    """The tree of an operation's results, which is like `tree`, or None without results."""
    if tree.leaves and not results:
        return None
    return jax.tree_util.tree_unflatten(tree.structure, results or [])


def refuse_status_of_trees(function: str, *operands: Any) -> None:
    """Raise TypeError for a tree beside a status, as it may be several messages."""
    if any(map(is_tree, operands)):
        raise TypeError(
            f"{function} got a tree and a status, expected an array with the status: the "
            "leaves of a tree may be several messages, each of which has one"
        )
