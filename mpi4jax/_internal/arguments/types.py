"""The types that public signatures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from mpi4py import MPI

from .hashable import HashableMPIType

__all__ = ["Array", "ArrayLike", "Comm", "Counts", "Integer", "Op", "Status"]

Comm: TypeAlias = MPI.Intracomm | HashableMPIType[MPI.Intracomm] | None
Op: TypeAlias = MPI.Op | HashableMPIType[MPI.Op]
Status: TypeAlias = MPI.Status | HashableMPIType[MPI.Status] | None
#: A rank or a tag.
Integer: TypeAlias = int | np.integer[Any]
#: A number for each process.
Counts: TypeAlias = Sequence[Integer] | np.ndarray[Any, np.dtype[np.integer[Any]]]
