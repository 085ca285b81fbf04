"""What the operations between neighbors share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import handles
from ..annotations import Comm
from ..handles import Communicator
from ..operation import fill
from ..topology import Neighbor, Neighbors
from ..validation import array

#: The kinds of numbers, each of which can hold those before it.
KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


def neighborhood(function: str, comm: Comm) -> tuple[Communicator, Neighbors]:
    """A communicator that has a topology, and the neighbors of this process."""
    communicator = handles.communicator(function, comm)
    neighbors = communicator.neighbors
    if neighbors is None:
        raise ValueError(
            f"{function} got a communicator without a topology for argument `comm`, "
            "expected one on which processes have neighbors. Make it with "
            "comm.Create_cart(dims, periods), comm.Create_graph(index, edges) or "
            "comm.Create_dist_graph_adjacent(sources, destinations)"
        )
    if neighbors.problem:
        raise ValueError(
            f"{function} got a communicator for argument `comm` with {neighbors.problem}"
        )
    return communicator, neighbors


def neighbors_in(
    communicator: Communicator, *, backwards: int = 0
) -> tuple[Sequence[Neighbor], Sequence[Neighbor]]:
    """Those that send to this process, and those that it sends to.

    Backwards, messages go the way that their cotangents do.
    """
    # Nobody binds an operation on a communicator without a topology.
    assert communicator.neighbors is not None
    sources, destinations, _ = communicator.neighbors
    return (destinations, sources) if backwards else (sources, destinations)


def edge_value(function: str, edge: Any, x: Any, block: tuple[int, ...]) -> Any:
    """What blocks are that no process sends: an array, or None for zeros.

    Arguments:
        function: The name of the operation.
        edge: What the user gives for it.
        x: The array that is sent.
        block: The shape of a block, or of a row where blocks have several.

    """
    edge = array(function, "edge", edge)
    if type(edge) in (bool, int, float, complex) and edge == 0:
        return None
    dtype, given = jnp.result_type(x), jnp.result_type(edge)
    if _kind(given) > _kind(dtype):
        raise TypeError(
            f"{function} got {given} for argument `edge`, expected a number that is "
            f"{dtype}, as what is sent"
        )
    try:
        fits = np.broadcast_shapes(np.shape(edge), block) == block
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{function} got an array of shape {np.shape(edge)} for argument `edge`, "
            f"expected a number, or an array for blocks of shape {block}"
        )
    # Also where no block is one: a number that is too large has to be one everywhere.
    return jnp.asarray(edge, dtype)


def _kind(dtype: Any) -> int:
    kinds = (n for n, kind in enumerate(KINDS) if jnp.issubdtype(dtype, kind))
    return next(kinds, len(KINDS))


def filled(result: Any, edge: Any, parts: tuple[tuple[int, int], ...]) -> Any:
    """The result with the value at the edge in the parts that nobody has sent."""
    return result if edge is None or not parts else _fill(result, edge, parts)


_fill = functools.partial(jax.jit, static_argnums=2)(fill)
