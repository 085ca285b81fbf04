"""The arguments that operations share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from mpi4py import MPI

from ..handles import Communicator
from ..jax_compat import ShapedArray
from ..validation import integer

ANY_SOURCE = int(MPI.ANY_SOURCE)
ANY_TAG = int(MPI.ANY_TAG)


def like(x: ShapedArray, shape: tuple[int, ...] | None = None) -> ShapedArray:
    """The type of an array like `x`, with another shape if one is given."""
    return ShapedArray(x.shape if shape is None else shape, x.dtype)


def root_rank(function: str, root: Any, comm: Communicator) -> int:
    """The root of a collective operation."""
    root = integer(function, "root", root)
    if not 0 <= root < comm.size:
        raise ValueError(
            f"{function} got {root} for argument `root`, expected a rank of the "
            f"communicator (0 to {comm.size - 1})"
        )
    return root


def check_first_axis(function: str, x: Any, comm: Communicator) -> None:
    """Check that `x` has a slice for every process."""
    if np.ndim(x) == 0 or np.shape(x)[0] != comm.size:
        raise ValueError(f"{function.capitalize()} input must have shape (nproc, ...)")


Array = jax.Array
