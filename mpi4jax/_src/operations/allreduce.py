"""MPI_Allreduce (MPI-4.1 §6.9.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .. import handles
from ..jax_compat import Primitive, ad, batching, register_lowering
from ..operation import Operation
from ._arguments import Array, like

allreduce_p = Operation(
    "allreduce",
    results=lambda x, **_: [like(x)],
    in_place=True,
)


def allreduce(x: Any, op: Any, *, comm: Any = None) -> Array:
    """Reduce an array over all processes, with the result on every process.

    .. note::

       Can be differentiated by :func:`jax.grad` and its relatives if ``op`` is
       :obj:`mpi4py.MPI.SUM`.

    Arguments:
        x: Array or scalar input.
        op (mpi4py.MPI.Op): The reduction operator (e.g. :obj:`mpi4py.MPI.SUM`).
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).

    Returns:
        The reduced array.

    """
    group = handles.communicator("allreduce", comm)
    (result,) = allreduce_p(group, x, op=handles.operator("allreduce", op))
    return result


# The sum is one value that all processes share, so its cotangent is counted once: the
# transpose is the identity. It is a primitive because its own transpose is the sum again.

transposed_p = Primitive("allreduce_transpose_mpi")
transposed_p.def_impl(lambda x, **_: x)
transposed_p.def_abstract_eval(lambda x, **_: x)
register_lowering(transposed_p, lambda ctx, x, **_: [x])
ad.primitive_jvps[transposed_p] = lambda primals, tangents, **params: (
    transposed_p.bind(*primals, **params),
    transposed_p.bind(*map(ad.instantiate_zeros, tangents), **params),
)
ad.primitive_transposes[transposed_p] = lambda cotangent, x, **params: allreduce_p.bind(
    ad.instantiate_zeros(cotangent), **params
)
batching.primitive_batchers[transposed_p] = lambda args, axes, **params: (
    transposed_p.bind(*args, **params),
    axes[0],
)


def _check_sum(op: int, what: str) -> None:
    if not handles.operator_is(op, MPI.SUM):
        raise NotImplementedError(f"The {what} of allreduce is only defined for op=MPI.SUM")


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, op: int, comm: int) -> Any:
    _check_sum(op, "adjoint")
    (x,), (tangent,) = primals, map(ad.instantiate_zeros, tangents)
    return [allreduce_p.bind(a, op=op, comm=comm) for a in (x, tangent)]


def _transpose(cotangents: Sequence[Any], x: Any, *, op: int, comm: int) -> Any:
    _check_sum(op, "linear transpose")
    (cotangent,) = map(ad.instantiate_zeros, cotangents)
    return [transposed_p.bind(cotangent, op=op, comm=comm)]


def _batch(args: Sequence[Any], axes: Sequence[Any], *, op: int, comm: int) -> Any:
    return allreduce_p.bind(*args, op=op, comm=comm), axes


allreduce_p.def_jvp(_jvp)
allreduce_p.def_transpose(_transpose)
allreduce_p.def_batch(_batch)
