"""MPI_Reduce_scatter_block (MPI-4.1 §6.10.1)."""

from __future__ import annotations

from typing import Any

from .. import handles
from ..operation import Operation
from . import allgather, alltoall
from ._arguments import Array, check_first_axis, like
from ._reductions import def_derivatives, reducer

reduce_scatter_p = Operation(
    "reduce_scatter",
    results=lambda x, **_: [like(x, x.shape[1:])],
    batch_axes=lambda **_: (1, 0),
)


def reduce_scatter(x: Any, op: Any, *, comm: Any = None) -> Array:
    """Reduce an array over all processes, with a slice of the result on each process.

    Arguments:
        x: Array input. First axis must have size ``nproc``.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduction of ``x[rank]`` over all processes: shape ``x.shape[1:]``.

    """
    group = handles.communicator("reduce_scatter", comm)
    check_first_axis("reduce_scatter", x, group)
    (result,) = reduce_scatter_p(group, x, op=handles.operator("reduce_scatter", op))
    return result


def _transpose(cotangent: Any, x: Any, *, op: int, comm: int) -> Any:
    return allgather.allgather_p.bind(cotangent, shared=False, comm=comm)


def _definition(op: int, result: Any, x: Any, *, comm: int) -> Any:
    return reducer(op)(alltoall.alltoall_p.bind(x, comm=comm), axis=0)


def_derivatives(reduce_scatter_p, _transpose, _definition)
