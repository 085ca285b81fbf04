"""Types in public signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, Union

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from mpi4py import MPI

from .hashable import HashableMPIType

__all__ = [
    "Array",
    "ArrayLike",
    "Comm",
    "Counts",
    "DType",
    "Integer",
    "Op",
    "PyTree",
    "Rank",
    "RankTree",
    "Scalar",
    "Shaped",
    "Status",
    "T",
    "Token",
    "Unchecked",
]

#: A tree of arrays.
T = TypeVar("T")
#: A tree whose leaves may be anything. JAX takes every object for a tree, so no narrower
#: type has all trees.
PyTree: TypeAlias = Any
#: An argument of a user's call that is not checked yet, and may be anything: the code that
#: takes it passes it to a check, or tests for the attributes that it reads.
Unchecked: TypeAlias = Any
#: The data type of an array.
DType: TypeAlias = np.dtype[Any]

Comm: TypeAlias = MPI.Intracomm | HashableMPIType[MPI.Intracomm] | None
Op: TypeAlias = MPI.Op | HashableMPIType[MPI.Op]
Status: TypeAlias = MPI.Status | HashableMPIType[MPI.Status] | None
#: A tag, or a rank that is known before the program runs.
Integer: TypeAlias = int | np.integer[Any]
#: A rank: an integer, or an array that the program computes.
Rank: TypeAlias = int | np.integer[Any] | Array
#: A number that is not an array.
Scalar: TypeAlias = np.bool_ | np.number[Any] | bool | int | float | complex
#: A number for each process.
Counts: TypeAlias = Sequence[Integer] | np.ndarray[Any, np.dtype[np.integer[Any]]]
#: A rank or a tag for each message of an `exchange`: a prefix of the tree of arrays.
RankTree: TypeAlias = Union[  # noqa: UP007
    Rank, Sequence["RankTree"], Mapping[Any, "RankTree"], None
]


class Shaped(Protocol):
    """An array of JAX or NumPy, or the type of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...


class Token(Protocol):
    """A token of mpi4jax, or a token made by JAX."""

    def block_until_ready(self) -> object: ...
