"""The arguments that operations share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from ..arguments.checks import array, integer, reject
from ..arguments.types import Array, ArrayLike, DType, PyTree
from ..layout.packing import Tree, is_tree
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray, Tracer

ANY_SOURCE = int(MPI.ANY_SOURCE)
ANY_TAG = int(MPI.ANY_TAG)
PROC_NULL = int(MPI.PROC_NULL)

#: The kinds of numbers, each of which can hold those before it.
KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


def bytes_of(aval: ShapedArray) -> int:
    """The size of an array in bytes."""
    size: int = aval.size * aval.dtype.itemsize
    return size


def bytes_of_a_row(aval: ShapedArray) -> int:
    """The size of each row of an array in bytes."""
    return bytes_of(like(aval, aval.shape[1:]))


def like(x: ShapedArray, shape: tuple[int, ...] | None = None) -> ShapedArray:
    """The type of an array like `x`, with another shape if one is given."""
    return ShapedArray(x.shape if shape is None else shape, x.dtype)


def root_rank(function: str, root: object, communicator: Communicator) -> int | Array:
    """The rank of the root of a collective operation, which the program may compute."""
    return _rank(function, "root", root, communicator, {})


def known_root(function: str, root: object, communicator: Communicator) -> int:
    """The rank of the root, for operations whose shapes depend on it: a known integer."""
    last = communicator.size - 1
    return _up_to(function, "root", root, last, _RANK, {})


def dest_rank(
    function: str, argument: str, rank: object, communicator: Communicator
) -> int | Array:
    """The rank of the process that a message is sent to, which the program may compute."""
    return _rank(function, argument, rank, communicator, _PROC_NULL)


def source_rank(
    function: str, argument: str, rank: object, communicator: Communicator
) -> int | Array:
    """The rank of the process that sends a message, which the program may compute."""
    return _rank(function, argument, rank, communicator, _PROC_NULL_OR_ANY)


def send_tag(function: str, argument: str, tag: object, communicator: Communicator) -> int:
    """The tag of a message that is sent."""
    return _up_to(function, argument, tag, communicator.last_tag, _TAG, {})


def recv_tag(function: str, argument: str, tag: object, communicator: Communicator) -> int:
    """The tag of a message that is received."""
    return _up_to(function, argument, tag, communicator.last_tag, _TAG, _ANY)


_RANK, _TAG = "a rank of the communicator", "a tag"
# The names of the special ranks and tags.
_PROC_NULL = {PROC_NULL: "MPI.PROC_NULL"}
_PROC_NULL_OR_ANY = {**_PROC_NULL, ANY_SOURCE: "MPI.ANY_SOURCE"}
_ANY = {ANY_TAG: "MPI.ANY_TAG"}


def _rank(
    function: str,
    argument: str,
    rank: object,
    communicator: Communicator,
    special: dict[int, str],
) -> int | Array:
    """A rank of the communicator, or an integer that the program computes."""
    if isinstance(rank, jax.Array):
        if rank.shape == () and jnp.issubdtype(rank.dtype, jnp.integer):
            if isinstance(rank, Tracer):
                return rank
            rank = int(rank)
        else:
            reject(function, argument, "an integer", rank, "A rank is a scalar integer")
    return _up_to(function, argument, rank, communicator.size - 1, _RANK, special)


def _up_to(
    function: str,
    argument: str,
    value: object,
    last: int,
    meaning: str,
    special: dict[int, str],
) -> int:
    """An argument that has to be an integer from 0 to `last`, or a special one."""
    if type(value) is int and 0 <= value <= last:
        return value  # at once, as eager calls come here, too
    value = integer(function, argument, value)
    if not 0 <= value <= last and value not in special:
        *others, expected = [f"{meaning} (0 to {last})", *special.values()]
        if others:
            expected = f"{', '.join(others)} or {expected}"
        raise ValueError(
            f"{function} got {value} for argument `{argument}`, expected {expected}"
        )
    return value


def arrays_of(function: str, argument: str, x: PyTree) -> Iterator[tuple[str, ArrayLike]]:
    """The array or arrays of an operand, each with its name: the path in a tree."""
    return Tree(argument, x).named_arrays(function) if is_tree(x) else iter([(argument, x)])


def check_first_axis(function: str, x: PyTree, communicator: Communicator) -> None:
    """Check that `x`, or each leaf if it is a tree, has a slice for every process."""
    for name, leaf in arrays_of(function, "x", x):
        shape = np.shape(leaf)
        if shape[:1] != (communicator.size,):
            unlike = f", unlike {name}" if leaf is not x else ""
            raise ValueError(
                f"{function.capitalize()} input must have shape (nproc, ...){unlike}: got "
                f"shape {shape}, and nproc is {communicator.size}"
            )


def row_counts(
    function: str, argument: str, counts: object, size: int, members: str = "processes"
) -> tuple[int, ...]:
    """Row counts: the number of rows that each process sends or receives."""
    if not isinstance(counts, (Sequence, np.ndarray)) or isinstance(counts, str):
        reject(function, argument, "a sequence of integers", counts)
    counts = tuple(integer(function, argument, count) for count in counts)
    if len(counts) != size or min(counts, default=0) < 0:
        raise ValueError(
            f"{function} got {list(counts)} for argument `{argument}`, expected a number "
            f"of rows, not negative, for each of the {size} {members}"
        )
    return counts


def needs_capacity(function: str, argument: str, counts: object) -> None:
    """Raise TypeError for counts that the program computes, which need a capacity."""
    if isinstance(counts, jax.Array):
        raise TypeError(
            f"{function} got a JAX array for argument `{argument}`, expected a sequence of "
            "integers. With counts that only the running program knows, say for how many "
            "rows the result has room: pass `capacity`"
        )


def refuse_uneven(function: str, communicator: Communicator) -> None:
    """Raise NotImplementedError in a `shard_map`, where shapes can't differ by process."""
    if communicator.is_on_mesh:
        raise NotImplementedError(
            f"{function} was called in a jax.shard_map over several processes, where an "
            "array has the same shape on all of them, with numbers of rows that differ. "
            "Call allgatherv or alltoallv with `capacity`, which take numbers that the "
            "program computes"
        )


def check_rows(function: str, argument: str, x: PyTree, rows: int) -> None:
    """Check that an operand has as many rows as the counts say."""
    for name, leaf in arrays_of(function, argument, x):
        if np.ndim(leaf) == 0 or np.shape(leaf)[0] != rows:
            raise ValueError(
                f"{function} got an array of shape {np.shape(leaf)} for argument `{name}`, "
                f"expected ({rows}, ...), as the counts say"
            )


def own_rows(counts: tuple[int, ...], communicator: Communicator) -> slice:
    """This process's own rows of an array with the rows of all processes."""
    start = sum(counts[: communicator.rank])
    return slice(start, start + counts[communicator.rank])


def padding(
    function: str, argument: str, value: ArrayLike, x: PyTree, first_axis: int = 0
) -> list[Array | None]:
    """The value of blocks that no process sends, for each array of an operand.

    Arguments:
        function: The name of the operation.
        argument: The name of the argument for the value.
        value: The user's value: a number, or an array like a block.
        x: The operand.
        first_axis: The first axis of a block in the arrays of the operand.

    Returns:
        Arrays, or None for zeros.

    """
    value = array(function, argument, value)
    leaves = [leaf for _, leaf in arrays_of(function, "x", x)]
    if type(value) in (bool, int, float, complex) and value == 0:
        return [None] * len(leaves)
    return [
        _padding(function, argument, value, leaf, np.shape(leaf)[first_axis:])
        for leaf in leaves
    ]


def _padding(
    function: str, argument: str, value: ArrayLike, x: ArrayLike, block: tuple[int, ...]
) -> Array:
    dtype, value_dtype = jnp.result_type(x), jnp.result_type(value)
    if kind_of(value_dtype) > kind_of(dtype):
        raise TypeError(
            f"{function} got {value_dtype} for argument `{argument}`, expected a number "
            f"that is {dtype}, as what is sent"
        )
    try:
        fits = np.broadcast_shapes(np.shape(value), block) == block
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{function} got an array of shape {np.shape(value)} for argument "
            f"`{argument}`, expected a number, or an array for blocks of shape {block}"
        )
    # Also where no block needs it: a number that is too large is an error on all processes.
    return jnp.asarray(value, dtype)


def kind_of(dtype: DType) -> int:
    """The kind of a type's numbers. The type can't hold numbers of a larger kind."""
    kinds = (n for n, kind in enumerate(KINDS) if jnp.issubdtype(dtype, kind))
    return next(kinds, len(KINDS))


def fill_leaves(
    fill: Callable[[Array, Array], Array], result: PyTree, padding: Sequence[Array | None]
) -> PyTree:
    """The result, with a function of array and padding applied where there is padding."""
    if all(value is None for value in padding):
        return result
    leaves, structure = jax.tree_util.tree_flatten(result)
    pairs = zip(leaves, padding, strict=True)
    filled = [leaf if value is None else fill(leaf, value) for leaf, value in pairs]
    return jax.tree_util.tree_unflatten(structure, filled)


def refuse_derivative(function: str) -> NoReturn:
    """Raise the error of an operation that is one side of a message."""
    raise NotImplementedError(
        f"{function} can't be differentiated: a derivative has to travel with the "
        "message, and JAX does not follow it from one process to another. Pass a token "
        "of mpi4jax.create_token() from call to call of send and recv, and let what is "
        "differentiated depend on it by mpi4jax.tie(). Or use sendrecv on both sides, "
        "with MPI.PROC_NULL for the side that is missing, and let what is "
        "differentiated depend on its result"
    )


def refuse_unknown_source(call: str, origin: str = "the source") -> NoReturn:
    """Raise the error of a receive that has no transpose, as its source is unknown."""
    raise NotImplementedError(
        f"{call} can't be differentiated in reverse mode: the gradient has to be sent back "
        f"to {origin}. Name it"
    )
