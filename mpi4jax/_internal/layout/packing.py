"""Trees of arrays: which leaves travel together, and how.

A small message takes as long as its start, whatever is in it. So small leaves of one type
become one array, which travels as the operation's declaration has a batch travel: behind
the axis of processes, where there is one. Large leaves travel by themselves, without the
copies that this takes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import PLAIN_TYPES, array
from .concatenation import concatenate, split

#: Leaves of more bytes than this travel by themselves. To pack an array and to unpack it
#: copies it twice. Between two processes of one machine that takes as long as to start a
#: message more at some tens of KiB (docs/performance.md), over a network at more.
LARGEST_PACKED = 1 << 15


class Tree:
    """A tree of arrays, in the place of an array that an operation is called with."""

    __slots__ = ("argument", "leaves", "structure", "tree")

    def __init__(self, argument: str, tree: Any) -> None:
        #: The name by which the user knows it.
        self.argument = argument
        self.tree = tree
        self.leaves, self.structure = jax.tree_util.tree_flatten(tree)

    def arrays(self, function: str) -> list[Any]:
        """The leaves, each of which has to be an array."""
        if all(type(leaf) in PLAIN_TYPES for leaf in self.leaves):
            return self.leaves
        return [array(function, self.argument, leaf) for leaf in self.leaves]

    def digest(self, *, has_more_axes: bool = False) -> int:
        """A hash of the structure, and of the leaves' shapes and types.

        Arguments:
            has_more_axes: Whether the leaves have an axis more than those of other
                processes, at the beginning.

        """
        skipped = int(has_more_axes)
        leaves = [(jnp.shape(x)[skipped:], str(jnp.result_type(x))) for x in self.leaves]
        text = f"{self.structure} {leaves}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def check(self, function: str, check: Callable[[str, Any], None]) -> None:
        """Check each leaf, by a function of what the user knows it by and of the array."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.tree):
            name = self.argument + jax.tree_util.keystr(path)
            check(name, array(function, name, leaf))


def parcels(leaves: Sequence[Any], axis: int) -> list[list[int]]:
    """Which leaves travel together: their places in the tree.

    That follows from the sizes and types alone, so all processes come to the same.

    Arguments:
        leaves: Arrays.
        axis: How many axes are in front of those that count: 1 where the first axis is
            one of processes.

    """
    found: list[list[int]] = []
    open_parcels: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        size = math.prod(leaf.shape[axis:]) * leaf.dtype.itemsize
        if size > LARGEST_PACKED:
            found.append([place])
        elif leaf.dtype in open_parcels:
            open_parcels[leaf.dtype].append(place)
        else:
            found.append(open_parcels.setdefault(leaf.dtype, [place]))
    return found


def packed(leaves: Sequence[Any], axis: int) -> Any:
    """One array of several: flattened, one behind the other."""
    if len(leaves) == 1:
        return leaves[0]
    return concatenate([x.reshape(*x.shape[:axis], -1) for x in leaves])


def unpacked(result: Any, leaves: Sequence[Any], axis: int, result_axis: int) -> list[Any]:
    """What belongs to each of the leaves that were packed, of the result for all."""
    if len(leaves) == 1:
        return [result]
    shapes = [leaf.shape[axis:] for leaf in leaves]
    parts = split(result, list(map(math.prod, shapes)))
    rows = result.shape[:result_axis]
    return [part.reshape(*rows, *shape) for part, shape in zip(parts, shapes, strict=True)]


def word_of(dtypes: Sequence[Any]) -> np.dtype[Any]:
    """What a message with arrays of these types is made of: their type if they have one.

    Otherwise unsigned integers, of which an element of each type is a whole number.
    """
    # A complex number is two.
    sizes = [np.zeros((), x).real.itemsize for x in dtypes]
    # XLA takes short floats for longer ones at times, and changes those that are no number.
    if len(set(dtypes)) == 1 and sizes[0] >= 4:
        return np.dtype(dtypes[0])
    return np.dtype(f"uint{8 * min(sizes)}")


def as_words(x: Any, word: np.dtype[Any]) -> Any:
    """The bits of an array, in one row of words."""
    if x.dtype == word:
        return x.ravel()
    if x.dtype == np.bool_:
        return x.ravel().astype(word)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    return _reinterpreted(x, word).ravel()


def from_words(words: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The array with a shape and a type whose bits these words are."""
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
    x = _reinterpreted(words.reshape(shape), real)
    return jax.lax.complex(x[..., 0], x[..., 1]) if is_complex else x


def _reinterpreted(x: Any, dtype: Any) -> Any:
    """The bits of an array as elements of another type, in an axis more or less."""
    if x.dtype.itemsize == dtype.itemsize:
        return jax.lax.bitcast_convert_type(x, dtype)
    # XLA makes one of two such steps, as from bytes to doubles and on to shorts, and gets
    # the shape wrong.
    barrier = jax.lax.optimization_barrier
    return barrier(jax.lax.bitcast_convert_type(barrier(x), dtype))
