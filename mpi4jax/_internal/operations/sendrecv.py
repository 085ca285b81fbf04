"""MPI_Sendrecv (MPI-4.1 §3.11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.types import Array, ArrayLike, Comm, Integer, Status
from ..forms.token import without_tokens
from ..mpi import handles
from ..xla.jax_compat import (
    Primitive,
    ShapedArray,
    ad,
    batching,
    lower_function,
    register_lowering,
)
from ._arguments import (
    ANY_SOURCE,
    ANY_TAG,
    PROC_NULL,
    dest_rank,
    like,
    recv_tag,
    send_tag,
    source_rank,
)
from .primitive import Operation


def _operation(kind: type[Operation], *operands: str) -> Operation:
    return kind(
        "sendrecv",
        operands=operands,
        result=lambda sendbuf, recvbuf, *_, **__: like(recvbuf),
        sent=lambda **_: 1,
        # Nothing comes from nowhere: the buffer stays as it was (MPI-4.1 §3.10).
        kept=lambda *, source, **_: 1 if source == PROC_NULL else None,
    )


class _Messages(Operation):
    """A sendrecv, of which one half may be missing where trees are sent and received."""

    def apply_to_parcel(self, *operands: Any, **params: Any) -> Any:
        sendbuf, recvbuf = operands
        if sendbuf is None:
            sendbuf, params["dest"] = jnp.zeros(0, recvbuf.dtype), PROC_NULL
        elif recvbuf is None:
            recvbuf, params["source"] = jnp.zeros(0, sendbuf.dtype), PROC_NULL
        return self.apply(sendbuf, recvbuf, **params)


operation = _operation(_Messages, "sendbuf", "recvbuf")


@without_tokens
def sendrecv(
    sendbuf: ArrayLike,
    recvbuf: ArrayLike,
    source: Integer,
    dest: Integer,
    *,
    sendtag: Integer = 0,
    recvtag: Integer = ANY_TAG,
    comm: Comm = None,
    status: Status = None,
) -> Array:
    """Send an array to one process while receiving another from a process.

    .. warning::

        Unlike mpi4py's sendrecv, this returns a *new* array with the received data.

    Arguments:
        sendbuf: Array or scalar input to send.
        recvbuf: Array or scalar input with the correct shape and dtype. This can
           contain arbitrary data and will not be overwritten.
        source (int): Rank of the source MPI process.
        dest (int): Rank of the destination MPI process.
        sendtag (int): Tag of this message for sending.
        recvtag (int): Tag of this message for receiving.
        comm (mpi4py.MPI.Comm): The MPI communicator to use (defaults to a clone of
            :obj:`COMM_WORLD`).
        status (mpi4py.MPI.Status): Filled when the message has been received.

    Returns:
        The received array (``recvbuf`` itself if ``source`` is
        :obj:`mpi4py.MPI.PROC_NULL`).

    """
    communicator = handles.communicator("sendrecv", comm)
    return operation.receive(
        communicator,
        sendbuf,
        recvbuf,
        source=source_rank("sendrecv", "source", source, communicator),
        dest=dest_rank("sendrecv", "dest", dest, communicator),
        sendtag=send_tag("sendrecv", "sendtag", sendtag, communicator),
        recvtag=recv_tag("sendrecv", "recvtag", recvtag, communicator),
        status=status,
    )


def check_batch_of_tangents(function: str, axis_of_mark: int | None) -> None:
    """Refuse a batch of tangents without one of the arrays, which have this mark."""
    if axis_of_mark is None:
        raise RuntimeError(
            f"{function} can't be used with jax.jacfwd, nor with jax.vmap over tangents "
            "alone: every process pushes a basis of its own, and what arrives is the "
            "derivative with respect to the array of another process. Use jax.jacrev, "
            "or jax.jvp for one direction that all processes have in common."
        )


class _Tangents(Operation):
    """A sendrecv of tangents, which have one direction in common on all processes.

    :func:`jax.jacfwd` maps over directions: those of the basis of each process, at the
    same time. The third operand is the primal arrays' mark, which tells that from a map
    over arrays and their tangents.
    """

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        check_batch_of_tangents(self.name, axes[-1])
        return super()._batch(operands, axes, **params)

    def push(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        result = self.primitive.bind(*primals, **params)
        pushed = map(ad.instantiate_zeros, tangents[:-1])
        return result, self.primitive.bind(*pushed, primals[-1], **params)


tangents = _operation(_Tangents, "sendbuf", "recvbuf", "mark")

# A scalar that is mapped over where one of its operands is, and takes no time.
mark_p = Primitive("sendrecv_mark")
mark_p.def_impl(lambda *_: jnp.zeros((), bool))
mark_p.def_abstract_eval(lambda *_: ShapedArray((), jnp.dtype(bool)))
register_lowering(mark_p, lower_function(lambda *_: jnp.zeros((), bool)))


def _batch_mark(operands: Sequence[Any], axes: Sequence[Any]) -> tuple[Any, int]:
    pairs = zip(operands, axes, strict=True)
    return jnp.zeros(next(x.shape[n] for x, n in pairs if n is not None), bool), 0


batching.primitive_batchers[mark_p] = _batch_mark
ad.primitive_jvps[mark_p] = lambda primals, _: (
    mark_p.bind(*primals),
    ad.Zero(ShapedArray((), jax.dtypes.float0)),
)


def _jvp(primals: Sequence[Any], given: Sequence[Any], **params: Any) -> Any:
    result = operation.primitive.bind(*primals, **params)
    pushed = map(ad.instantiate_zeros, given)
    params["status_number"] = handles.NO_STATUS
    mark = mark_p.bind(*primals)
    return result, tangents.primitive.bind(*pushed, mark, **params)


def _transpose(
    cotangent: Any,
    sendbuf: Any,
    recvbuf: Any,
    *mark: Any,
    source: int,
    dest: int,
    **params: Any,
) -> Any:
    if source == ANY_SOURCE:
        raise NotImplementedError(
            "sendrecv with source=MPI.ANY_SOURCE can't be differentiated in reverse mode: "
            "the gradient has to be sent back to the source. Name it"
        )
    # The cotangent goes the way back. Which tag it comes with, its sender alone knows.
    params.update(recvtag=ANY_TAG, status_number=handles.NO_STATUS)
    nothing = jnp.zeros(sendbuf.shape, sendbuf.dtype)
    back = operation.apply(cotangent, nothing, source=dest, dest=source, **params)
    # What was in recvbuf had no part in the result, unless nothing came.
    kept = cotangent if source == PROC_NULL else jnp.zeros_like(cotangent)
    return back, kept, *mark


operation.def_jvp(_jvp)
operation.def_transpose(_transpose)
tangents.def_linear(_transpose)
