"""The types that public signatures are made of."""

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
    "RankTree",
    "Status",
    "T",
    "Token",
]

#: A tree of arrays.
T = TypeVar("T")
#: A tree of anything, where nothing is known of it: all objects are trees for JAX.
PyTree: TypeAlias = Any
#: The data type of an array.
DType: TypeAlias = np.dtype[Any]

Comm: TypeAlias = MPI.Intracomm | HashableMPIType[MPI.Intracomm] | None
Op: TypeAlias = MPI.Op | HashableMPIType[MPI.Op]
Status: TypeAlias = MPI.Status | HashableMPIType[MPI.Status] | None
#: A rank or a tag.
Integer: TypeAlias = int | np.integer[Any]
#: A number for each process.
Counts: TypeAlias = Sequence[Integer] | np.ndarray[Any, np.dtype[np.integer[Any]]]
#: A rank or a tag for each message of an `exchange`: a prefix of the tree of arrays.
RankTree: TypeAlias = Union[  # noqa: UP007
    Integer, Sequence["RankTree"], Mapping[Any, "RankTree"], None
]


class Token(Protocol):
    """A token of mpi4jax, or one that JAX has made."""

    def block_until_ready(self) -> Any: ...
