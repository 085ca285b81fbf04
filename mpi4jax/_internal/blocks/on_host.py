"""An exchange of blocks of NumPy's arrays, which takes no program of XLA's.

It is for arrays that are on the host already, of any types: what goes into files, or comes
out of them. Only blocks that are sent are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from .copies import View
from .description import Description

Host: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def exchange_on_host(
    comm: MPI.Intracomm, description: Description, arrays: Sequence[Host]
) -> None:
    """Set blocks of arrays to those of other processes, and to copies of own ones.

    Arguments:
        comm: The communicator, for messages that meet no others.
        description: An exchange in place, without listed rows.
        arrays: The arrays. No block is both read and written.

    """
    requests, arrived = [], []
    for message in description.received:
        for view in message.blocks:
            block = np.empty(view.sizes, arrays[view.array].dtype)
            arrived.append((view, block))
            with _Rows(block) as rows:
                requests.append(comm.Irecv(rows, message.rank, message.tag))
    for message in description.sent:
        for view in message.blocks:
            block = np.ascontiguousarray(_part(arrays, view))
            with _Rows(block) as rows:
                requests.append(comm.Isend(rows, message.rank, message.tag))
    for source, result in (copy for stage in description.local for copy in stage):
        _part(arrays, result)[...] = _part(arrays, source)
    MPI.Request.Waitall(requests)
    for view, block in arrived:
        _part(arrays, view)[...] = block


def _part(arrays: Sequence[Host], view: View) -> Host:
    return arrays[view.array][view.slices]


class _Rows:
    """A block as rows of bytes: C's `int` counts rows where there are too many bytes.

    MPI frees the type of a row when it is no longer used (MPI-4.1 §5.1.9).
    """

    def __init__(self, block: Host) -> None:
        row = block.itemsize * (block.shape[-1] if block.ndim > 1 else 1)
        self._type = MPI.BYTE.Create_contiguous(row)
        self._buffer = block, block.nbytes // row, self._type

    def __enter__(self) -> tuple[Host, int, MPI.Datatype]:
        self._type.Commit()
        return self._buffer

    def __exit__(self, *error: object) -> None:
        self._type.Free()
