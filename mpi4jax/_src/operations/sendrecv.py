"""MPI_Sendrecv (MPI-4.1 §3.11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from .. import handles
from ..jax_compat import Tracer, ad
from ..operation import Operation
from ..validation import integer
from ._arguments import ANY_TAG, Array, like


class SendRecv(Operation):
    """A sendrecv, or one of tangents, which can be transposed but not run."""

    def _lower(self, ctx: Any, *operands: Any, **params: int) -> Sequence[Any]:
        if params.pop("tangent"):
            raise RuntimeError(
                "sendrecv cannot be used with forward-mode (jvp) autodiff, because the "
                "gradient might be located on a different MPI rank than the desired "
                "one. Use reverse-mode (vjp) differentiation instead."
            )
        return super()._lower(ctx, *operands, **params)


sendrecv_p = SendRecv(
    "sendrecv",
    operands=("sendbuf", "recvbuf"),
    results=lambda sendbuf, recvbuf, **_: [like(recvbuf)],
    sent=lambda **_: 1,
)


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: Any,
    dest: Any,
    *,
    sendtag: Any = 0,
    recvtag: Any = ANY_TAG,
    comm: Any = None,
    status: Any = None,
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
    group = handles.communicator("sendrecv", comm)
    (result,) = sendrecv_p.receive(
        group,
        sendbuf,
        recvbuf,
        source=integer("sendrecv", "source", source),
        dest=integer("sendrecv", "dest", dest),
        sendtag=integer("sendrecv", "sendtag", sendtag),
        recvtag=integer("sendrecv", "recvtag", recvtag),
        status=status,
        tangent=False,
    )
    if source != MPI.PROC_NULL:
        return result
    # Nothing comes from nowhere: the buffer stays as it was (MPI-4.1 §3.10). It depends on
    # the call nevertheless, for the gradient that comes back from `dest`.
    return jnp.where(False, result, recvbuf) if isinstance(result, Tracer) else recvbuf


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    tangents = list(map(ad.instantiate_zeros, tangents))
    tangent_params = {**params, "tangent": not params["tangent"]}
    return sendrecv_p.bind(*primals, **params), sendrecv_p.bind(*tangents, **tangent_params)


def _transpose(cotangents: Sequence[Any], sendbuf: Any, recvbuf: Any, **params: Any) -> Any:
    # The cotangent goes the way back. What was in recvbuf had no part in the result.
    (cotangent,) = map(ad.instantiate_zeros, cotangents)
    back = {
        "source": params["dest"],
        "dest": params["source"],
        "tangent": not params["tangent"],
    }
    sent = sendbuf.aval if ad.is_undefined_primal(sendbuf) else sendbuf
    template = jnp.zeros(sent.shape, sent.dtype)
    (result,) = sendrecv_p.bind(cotangent, template, **{**params, **back})
    if params["dest"] == MPI.PROC_NULL:
        result = template  # What went nowhere has no part in any result.
    return [
        result if ad.is_undefined_primal(sendbuf) else None,
        ad.Zero(recvbuf.aval) if ad.is_undefined_primal(recvbuf) else None,
    ]


def _batch(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
    # One message for the whole batch, the batch axis first on both sides.
    size = next(
        x.shape[axis] for x, axis in zip(args, axes, strict=True) if axis is not None
    )
    moved = [
        jnp.broadcast_to(x, (size, *jnp.shape(x)))
        if axis is None
        else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(args, axes, strict=True)
    ]
    return sendrecv_p.bind(*moved, **params), [0]


sendrecv_p.def_jvp(_jvp)
sendrecv_p.def_transpose(_transpose)
sendrecv_p.def_batch(_batch)
