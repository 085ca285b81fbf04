"""Trees as JSON: their structure, and the plans of their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ..._manifest import Json
from ..arguments.checks import describe, reject
from ..arguments.types import PyTree

Structure: TypeAlias = Json
"""The number of a leaf, or a node.

A node is a dictionary of its kind ("dict", "list", "tuple", or "node" for all others), the
name of its type, and its children, each with its key.
"""

Key: TypeAlias = "str | int | float | bool"


class Children(NamedTuple):
    """The children of a node."""

    kind: str
    type_name: str
    items: list[tuple[Key, Any]]

    @property
    def keys(self) -> list[Key]:
        return [key for key, _ in self.items]


def children_of(node: PyTree) -> Children | None:
    """The children of a node, or None of a leaf."""
    kind, name = type(node), type(node).__name__
    if kind is dict:
        return Children("dict", name, list(node.items()))
    if kind in (list, tuple):
        return Children(name, name, list(enumerate(node)))
    if node is None or jax.tree_util.all_leaves([node]):
        return None
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return Children("node", name, [(_key_of(path[0]), child) for path, child in pairs])


def _key_of(key: Any) -> Key:
    found: Key = str(key)
    match key:
        case GetAttrKey(name=name):
            found = name
        case DictKey(key=of_dict) | FlattenedIndexKey(key=of_dict):
            found = of_dict
        case SequenceKey(idx=index):
            found = index
    return found


def path_of(path: str, kind: str, key: Key) -> str:
    """The path of a child, as an expression of Python's."""
    return (
        f"{path}.{key}" if kind == "node" and isinstance(key, str) else f"{path}[{key!r}]"
    )


def flatten(function: str, tree: PyTree) -> tuple[Structure, list[tuple[str, Any]]]:
    """The structure of a tree, and its leaves with their paths. None is a leaf."""
    leaves: list[tuple[str, Any]] = []

    def visit(node: PyTree, path: str) -> Structure:
        children = children_of(node)
        if children is None:
            leaves.append((path, node))
            return len(leaves) - 1
        for key in children.keys:
            if type(key) not in (str, int, float, bool):
                raise TypeError(
                    f"{function} got {describe(key)} as a key of `tree{path}`, expected "
                    "strings or numbers as keys"
                )
        return {
            "kind": children.kind,
            "type": children.type_name,
            "children": [
                [key, visit(child, path_of(path, children.kind, key))]
                for key, child in children.items
            ],
        }

    return visit(tree, ""), leaves


def unflatten(structure: Structure, leaves: Sequence[Any]) -> PyTree:
    """The tree with some leaves. Nodes that are not Python's own are dictionaries."""
    if isinstance(structure, int):
        return leaves[structure]
    children = [(key, unflatten(child, leaves)) for key, child in structure["children"]]
    if structure["kind"] in ("list", "tuple"):
        values = [value for _, value in children]
        return values if structure["kind"] == "list" else tuple(values)
    return dict(children)


def unflatten_like(like: PyTree, structure: Structure, leaves: Sequence[Any]) -> PyTree:
    """The tree with some leaves, in which nodes have the types of those of another tree."""
    if isinstance(structure, int):
        return leaves[structure]
    children = children_of(like)
    assert children is not None
    by_key = {(type(key), key): child for key, child in structure["children"]}
    results = [
        (key, unflatten_like(child, by_key[type(key), key], leaves))
        for key, child in children.items
    ]
    if children.kind == "dict":
        return dict(results)
    values = [value for _, value in results]
    if children.kind != "node":
        return values if children.kind == "list" else tuple(values)
    definition = jax.tree_util.tree_structure(like, is_leaf=lambda x: x is not like)
    return jax.tree_util.tree_unflatten(definition, values)


def prefix_leaves(
    function: str,
    argument: str,
    prefix: PyTree,
    structure: Structure,
    is_leaf: Callable[[Any], bool],
    expected: str,
) -> list[Any]:
    """The leaf of a tree prefix for each leaf of a tree.

    Arguments:
        function: The function that was called.
        argument: The name of the prefix.
        prefix: The prefix, whose leaves stand for all that is below them in the tree.
        structure: The structure of the tree.
        is_leaf: Whether something is a leaf of the prefix.
        expected: A description of the leaves for errors.

    """

    def visit(node: Any, structure: Structure, path: str) -> Iterator[Any]:
        if is_leaf(node):
            yield from (node for _ in _leaves_of(structure))
            return
        children = children_of(node)
        if children is None:
            reject(function, f"{argument}{path}", expected, node)
        keys = _keys_of(structure)
        if keys is None or sorted(map(repr, children.keys)) != sorted(map(repr, keys)):
            found = "a leaf" if keys is None else f"one with the keys {keys}"
            raise ValueError(
                f"{function} got a node with the keys {children.keys} for "
                f"`{argument}{path}`, expected a prefix of the tree, which has {found} "
                "there"
            )
        by_key = {repr(key): child for key, child in children.items}
        for key, below in structure["children"]:
            yield from visit(by_key[repr(key)], below, path_of(path, children.kind, key))

    return list(visit(prefix, structure, ""))


def check_like(function: str, structure: Structure, like: PyTree) -> list[tuple[str, Any]]:
    """The leaves of a tree like the one of a file, in that one's order, with their paths.

    Raise ValueError if the trees differ.
    """

    def visit(node: Any, structure: Structure, path: str) -> Iterator[tuple[str, Any]]:
        children, keys = children_of(node), _keys_of(structure)
        if children is None and keys is None:
            yield path, node
            return
        here = None if children is None else children.keys
        if here is None or keys is None:
            found, expected = (
                "a leaf" if each is None else f"a node with the keys {each}"
                for each in (keys, here)
            )
            raise ValueError(
                f"{function} found {found} at `tree{path}`, expected {expected}, as in "
                "`like`"
            )
        missing = [key for key in here if key not in keys]
        additional = [key for key in keys if key not in here]
        if missing or additional:
            texts = [
                f"no {', '.join(map(repr, missing))}" if missing else "",
                f"an additional {', '.join(map(repr, additional))}" if additional else "",
            ]
            raise ValueError(
                f"{function} found {' and '.join(filter(None, texts))} in `tree{path}`, "
                f"expected the keys {here}, as in `like`"
            )
        assert children is not None
        by_key = dict(children.items)
        for key, below in structure["children"]:
            yield from visit(by_key[key], below, path_of(path, children.kind, key))

    return list(visit(like, structure, ""))


def _keys_of(structure: Structure) -> list[Key] | None:
    """The keys of a node, or None of a leaf."""
    if isinstance(structure, int):
        return None
    return [key for key, _ in structure["children"]]


def _leaves_of(structure: Structure) -> Iterator[int]:
    if isinstance(structure, int):
        yield structure
        return
    for _, child in structure["children"]:
        yield from _leaves_of(child)
