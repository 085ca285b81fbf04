"""Trees of arrays, of whose leaves the small ones are packed into one array.

A small message takes the time of its start, whatever its size. So small leaves of one type
are packed into one array, behind the axis of processes, if there is one, where a batch
would be. Large leaves travel by themselves, without the copies of packing and unpacking.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..arguments.checks import ARRAY_TYPES, PLAIN_TYPES, array, jax_array
from ..arguments.dtypes import avals_of
from ..arguments.types import Array, ArrayLike, DType, PyTree, Unchecked
from ..xla.jax_compat import ShapedArray
from .concatenation import concatenate, split

#: Leaves of more bytes than this travel by themselves. Packing and unpacking copy an array
#: twice. Between two processes of one machine, this takes as long as the start of another
#: message from some tens of KiB on (docs/performance.md), and over a network from more.
LARGEST_PACKED = 1 << 15


def is_tree(x: object) -> bool:
    """Whether an operand is a tree of arrays, and not an array or a number."""
    if type(x) is np.ndarray or type(x) in PLAIN_TYPES:
        return False
    if isinstance(x, ARRAY_TYPES) or hasattr(x, "__jax_array__"):
        return False
    return type(x) is Tree or not jax.tree_util.all_leaves([x])


class Tree:
    """A tree of arrays, which an operand of an operation may be."""

    __slots__ = ("argument", "leaves", "structure", "tree")

    def __init__(self, argument: str, tree: PyTree) -> None:
        #: The name of the operand.
        self.argument = argument
        self.tree = tree
        self.leaves, self.structure = jax.tree_util.tree_flatten(tree)

    def arrays(self, function: str) -> list[ArrayLike]:
        """The leaves, each of which has to be an array."""
        if all(type(leaf) in PLAIN_TYPES for leaf in self.leaves):
            return self.leaves
        try:
            return [array(function, self.argument, leaf) for leaf in self.leaves]
        except TypeError:
            list(self.named_arrays(function))  # raises the error that names the leaf
            raise

    def digest(self, skipped_axes: int = 0) -> int:
        """A hash of the structure, and of the leaves' types and shapes.

        The first `skipped_axes` of these may differ between processes.
        """
        leaves = [
            (jnp.shape(x)[skipped_axes:], str(jnp.result_type(x))) for x in self.leaves
        ]
        text = f"{self.structure} {leaves}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def checked(self, function: str) -> PyTree:
        """The tree, with leaves of which each has to be an array."""
        return self.with_leaves(self.arrays(function))

    def with_leaves(self, leaves: Iterable[Unchecked]) -> PyTree:
        """The tree with other leaves."""
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def named_leaves(self) -> Iterator[tuple[str, Unchecked]]:
        """The leaves, with their paths as names."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.tree):
            yield self.argument + jax.tree_util.keystr(path), leaf

    def named_arrays(self, function: str) -> Iterator[tuple[str, ArrayLike]]:
        """The leaves, each of which has to be an array, with their paths as names."""
        for name, leaf in self.named_leaves():
            yield name, array(function, name, leaf)

    def jax_arrays(self, function: str) -> Iterator[tuple[str, Array]]:
        """The leaves as arrays of JAX's that can be sent, with their paths as names."""
        for name, leaf in self.named_leaves():
            yield name, jax_array(function, name, leaf)


def result_tree(structure: PyTreeDef, results: Sequence[Array]) -> PyTree:
    """The tree of an operation's results, or None without results for its leaves."""
    if structure.num_leaves and not results:
        return None
    return jax.tree_util.tree_unflatten(structure, results)


class PackedGroup(NamedTuple):
    """The leaves that travel as one array: their indices, and their types."""

    indices: tuple[int, ...]
    avals: tuple[ShapedArray, ...]


def packed_groups(
    trees: Sequence[Sequence[ArrayLike]], axis: int
) -> Iterator[tuple[list[Array | None], PackedGroup]]:
    """Pack the leaves that travel together, of one tree or of several at the same time.

    The groups follow from the sizes and types alone, so they are equal on all processes.

    Arguments:
        trees: The leaves of each tree.
        axis: Number of leading axes that are kept: 1 where the first axis belongs to
            processes.

    Yields:
        An array for each tree, or None if it has fewer groups than another one has, and the
        group of the last tree.

    """
    arrays = [list(map(jnp.asarray, leaves)) for leaves in trees]
    grouped = (_group(leaves, axis) for leaves in arrays)
    for groups in itertools.zip_longest(*grouped, fillvalue=()):
        pairs = zip(arrays, groups, strict=True)
        members = [[leaves[index] for index in indices] for leaves, indices in pairs]
        packed = [_pack(leaves, axis) if leaves else None for leaves in members]
        yield packed, PackedGroup(tuple(groups[-1]), tuple(avals_of(members[-1])))


def _group(leaves: Sequence[Array], axis: int) -> list[list[int]]:
    """The indices of the leaves that travel together."""
    groups: list[list[int]] = []
    packed_groups: dict[DType, list[int]] = {}
    for index, leaf in enumerate(leaves):
        size = math.prod(leaf.shape[axis:]) * leaf.dtype.itemsize
        if size > LARGEST_PACKED:
            groups.append([index])
        elif leaf.dtype in packed_groups:
            packed_groups[leaf.dtype].append(index)
        else:
            groups.append(packed_groups.setdefault(leaf.dtype, [index]))
    return groups


def _pack(leaves: Sequence[Array], axis: int) -> Array:
    """The concatenation of arrays that are flattened behind the first `axis` axes."""
    if len(leaves) == 1:
        return leaves[0]
    flat = [x.reshape(*x.shape[:axis], math.prod(x.shape[axis:])) for x in leaves]
    return concatenate(flat)


def unpack_groups(
    results: Iterable[tuple[PackedGroup, Array]], axis: int, result_axis: int
) -> list[Array]:
    """The results for the leaves, in order, from the results for packed groups."""
    leaves: dict[int, Array] = {}
    for (indices, avals), result in results:
        unpacked = _unpack(result, avals, axis, result_axis)
        leaves.update(zip(indices, unpacked, strict=True))
    return [leaves[index] for index in sorted(leaves)]


def _unpack(
    result: Array, avals: Sequence[ShapedArray], axis: int, result_axis: int
) -> list[Array]:
    if len(avals) == 1:
        return [result]
    shapes = [aval.shape[axis:] for aval in avals]
    parts = split(result, list(map(math.prod, shapes)))
    rows = result.shape[:result_axis]
    return [part.reshape(*rows, *shape) for part, shape in zip(parts, shapes, strict=True)]


def word_of(dtypes: Sequence[DType]) -> DType:
    """The type of the words as which arrays of these types are packed.

    It is the arrays' type if they have one in common, else an unsigned integer as long as
    the smallest of their real numbers, of which each element consists.
    """
    # A complex number consists of two real ones.
    sizes = [np.zeros((), x).real.itemsize for x in dtypes]
    # XLA converts short floats to longer ones at times, and changes the bits of NaNs then.
    if len(set(dtypes)) == 1 and sizes[0] >= 4:
        return np.dtype(dtypes[0])
    return np.dtype(f"uint{8 * min(sizes)}")


def as_words(x: Array, word: DType) -> Array:
    """The bits of an array as a flat array of words."""
    if x.dtype == word:
        return x.ravel()
    if x.dtype == np.bool_:
        return x.ravel().astype(word)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    return _bitcast(x, word).ravel()


def from_words(words: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """The array of a shape and a type with the bits of a flat array of words."""
    if dtype == words.dtype:
        return words.reshape(shape)
    if dtype == np.bool_:
        return words.astype(bool).reshape(shape)
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    real = np.zeros((), dtype).real.dtype
    if is_complex:
        shape = (*shape, 2)
    if real.itemsize > words.dtype.itemsize:
        shape = (*shape, real.itemsize // words.dtype.itemsize)
    x = _bitcast(words.reshape(shape), real)
    return jax.lax.complex(x[..., 0], x[..., 1]) if is_complex else x


def _bitcast(x: Array, dtype: DType) -> Array:
    """The bits of an array as elements of another type, with one axis more or less."""
    if x.dtype.itemsize == dtype.itemsize:
        return jax.lax.bitcast_convert_type(x, dtype)
    # XLA merges two such steps, as from bytes to doubles and on to shorts, into one of the
    # wrong shape.
    x = jax.lax.optimization_barrier(x)
    x = jax.lax.optimization_barrier(jax.lax.bitcast_convert_type(x, dtype))
    return x
