"""The arguments that operations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from ..arguments.checks import array, integer, reject
from ..arguments.types import Array
from ..layout.packing import Tree
from ..mpi.handles import Communicator
from ..xla.jax_compat import ShapedArray

ANY_SOURCE = int(MPI.ANY_SOURCE)
ANY_TAG = int(MPI.ANY_TAG)
PROC_NULL = int(MPI.PROC_NULL)

#: The kinds of numbers, each of which can hold those before it.
KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


def bytes_of(aval: ShapedArray) -> int:
    """How many bytes an array takes."""
    size: int = aval.size * aval.dtype.itemsize
    return size


def bytes_of_a_row(aval: ShapedArray) -> int:
    """How many bytes each member of an array's first axis takes."""
    return bytes_of(like(aval, aval.shape[1:]))


def like(x: ShapedArray, shape: tuple[int, ...] | None = None) -> ShapedArray:
    """The type of an array like `x`, with another shape if one is given."""
    return ShapedArray(x.shape if shape is None else shape, x.dtype)


def depend(value: Array, result: Any) -> Array:
    """The value, which depends on an operation's result for JAX, and on nothing for XLA.

    What is computed from it can then be transposed, and the operation with it.
    """
    return jnp.where(False, result, value)


def zeros_after(result: Any) -> Array:
    """Zeros like an operation's result, which depend on it in the same way."""
    return depend(jnp.zeros_like(result), result)


def root_rank(function: str, root: Any, communicator: Communicator) -> int:
    """The root of a collective operation."""
    last = communicator.size - 1
    return _up_to(function, "root", root, last, _RANK, {})


def dest_rank(function: str, argument: str, rank: Any, communicator: Communicator) -> int:
    """The process that a message goes to."""
    last = communicator.size - 1
    return _up_to(function, argument, rank, last, _RANK, _NOBODY)


def source_rank(function: str, argument: str, rank: Any, communicator: Communicator) -> int:
    """The process that a message comes from."""
    last = communicator.size - 1
    return _up_to(function, argument, rank, last, _RANK, _NOBODY_OR_ANY)


def send_tag(function: str, argument: str, tag: Any, communicator: Communicator) -> int:
    """The tag of a message that is sent."""
    return _up_to(function, argument, tag, communicator.last_tag, _TAG, {})


def recv_tag(function: str, argument: str, tag: Any, communicator: Communicator) -> int:
    """The tag of a message that is received."""
    return _up_to(function, argument, tag, communicator.last_tag, _TAG, _ANY)


_RANK, _TAG = "a rank of the communicator", "a tag"
# What further stands for a rank or a tag, by its value.
_NOBODY = {PROC_NULL: "MPI.PROC_NULL"}
_NOBODY_OR_ANY = {**_NOBODY, ANY_SOURCE: "MPI.ANY_SOURCE"}
_ANY = {ANY_TAG: "MPI.ANY_TAG"}


def _up_to(
    function: str,
    argument: str,
    value: Any,
    last: int,
    what: str,
    special: dict[int, str],
) -> int:
    """An argument that has to be a number from 0 to `last`, or a special one."""
    if type(value) is int and 0 <= value <= last:
        return value  # at once, as eager calls come here, too
    number = integer(function, argument, value)
    if not 0 <= number <= last and number not in special:
        *others, expected = [f"{what} (0 to {last})", *special.values()]
        if others:
            expected = f"{', '.join(others)} or {expected}"
        raise ValueError(
            f"{function} got {number} for argument `{argument}`, expected {expected}"
        )
    return number


def check_first_axis(function: str, x: Any, communicator: Communicator) -> None:
    """Check that `x` has a slice for every process, or each leaf if it is a tree."""
    text = f"{function.capitalize()} input must have shape (nproc, ...)"

    def check(name: str, leaf: Any) -> None:
        shape = np.shape(leaf)
        if shape[:1] != (communicator.size,):
            which = f", unlike {name}" if name else ""
            raise ValueError(
                f"{text}{which}: got shape {shape}, and nproc is {communicator.size}"
            )

    if type(x) is Tree:
        x.check(function, check)
    else:
        check("", x)


def row_counts(
    function: str, argument: str, counts: Any, communicator: Communicator
) -> tuple[int, ...]:
    """How many rows each process sends or receives."""
    return _row_counts(function, argument, counts, communicator.size, "processes")


def neighbor_row_counts(
    function: str, argument: str, counts: Any, number: int
) -> tuple[int, ...]:
    """How many rows each of so many neighbors sends or receives."""
    return _row_counts(function, argument, counts, number, "neighbors")


def _row_counts(
    function: str, argument: str, counts: Any, number: int, whom: str
) -> tuple[int, ...]:
    if not isinstance(counts, (Sequence, np.ndarray)) or isinstance(counts, str):
        reject(function, argument, (Sequence, np.ndarray), counts)
    counts = tuple(integer(function, argument, count) for count in counts)
    if len(counts) != number or min(counts, default=0) < 0:
        raise ValueError(
            f"{function} got {list(counts)} for argument `{argument}`, expected a number "
            f"of rows, not negative, for each of the {number} {whom}"
        )
    return counts


def needs_capacity(function: str, argument: str, counts: Any) -> None:
    """Refuse counts of which only the running program knows the values."""
    if isinstance(counts, jax.Array):
        raise TypeError(
            f"{function} got a JAX array for argument `{argument}`, expected a sequence of "
            "integers. With counts that only the running program knows, say for how many "
            "rows the result has room: pass `capacity`"
        )


def check_rows(function: str, argument: str, x: Any, rows: int) -> None:
    """Check that `x` has so many rows."""
    if np.ndim(x) == 0 or np.shape(x)[0] != rows:
        raise ValueError(
            f"{function} got an array of shape {np.shape(x)} for argument `{argument}`, "
            f"expected ({rows}, ...), as the counts say"
        )


def own_rows(counts: tuple[int, ...], communicator: Communicator) -> slice:
    """Where the rows of this process are among those of all."""
    start = sum(counts[: communicator.rank])
    return slice(start, start + counts[communicator.rank])


def padding(
    function: str, argument: str, value: Any, x: Any, block: tuple[int, ...]
) -> Any:
    """What blocks are that no process sends: an array, or None for zeros.

    Arguments:
        function: The name of the operation.
        argument: That of the argument.
        value: What the user gives for it.
        x: The array that is sent.
        block: The shape of a block, or of a row where blocks have several.

    """
    value = array(function, argument, value)
    if type(value) in (bool, int, float, complex) and value == 0:
        return None
    dtype, given = jnp.result_type(x), jnp.result_type(value)
    if _kind(given) > _kind(dtype):
        raise TypeError(
            f"{function} got {given} for argument `{argument}`, expected a number that is "
            f"{dtype}, as what is sent"
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
    # Also where no block is one: a number that is too large has to be one everywhere.
    return jnp.asarray(value, dtype)


def _kind(dtype: Any) -> int:
    kinds = (n for n, kind in enumerate(KINDS) if jnp.issubdtype(dtype, kind))
    return next(kinds, len(KINDS))


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
    """Raise the error of a receive that can't be transposed, as its source is not known."""
    raise NotImplementedError(
        f"{call} can't be differentiated in reverse mode: the gradient has to be sent back "
        f"to {origin}. Name it"
    )
