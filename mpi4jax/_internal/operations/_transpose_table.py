"""Table of the operations that are transposes of each other.

As a linear map between the arrays of all processes together, an operation has a transpose,
through which cotangents go. It is an operation on all processes again, or several of them.
Each rule here gives the cotangents of an operation's operands, from the cotangents of its
results. Numbers have none.

No module imports this one, so that no operation has to know another one for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import jax.numpy as jnp

from ..arguments.dtypes import SUM
from ..arguments.types import Array, Shaped
from ..xla.dependence import zeros_after
from ._arguments import ANY_TAG
from ._computed import choose, where_null
from ._neighbors import neighbors_in
from ._transposes import Cotangents, transpose_rule
from .allgather import AllGather
from .allgatherv import AllGatherV, AllGatherVRows
from .allreduce import AllReduce
from .alltoall import AllToAll
from .alltoallv import AllToAllV, AllToAllVRows
from .bcast import Bcast
from .exchange import Exchange
from .exscan import ExScan
from .gather import Gather
from .gatherv import GatherV
from .neighbor_allgather import NeighborAllGather
from .neighbor_allgatherv import NeighborAllGatherV
from .neighbor_alltoall import NeighborAllToAll
from .neighbor_alltoallv import NeighborAllToAllV
from .recv import LinearRecv, Recv
from .reduce import Reduce
from .reduce_scatter import ReduceScatter
from .reduce_scatterv import ReduceScatterV
from .scan import Scan
from .scatter import Scatter
from .scatterv import ScatterV
from .send import LinearSend, Send
from .sendrecv import SendRecv

Arrays: TypeAlias = Sequence[Array]
Types: TypeAlias = Sequence[Shaped]


# Between all processes. A shared result has its cotangent on each process
# (`_shared.py`): these rules are for cotangents of each process's own.


@transpose_rule.register(AllGather)
def _(operation: AllGather, cotangents: Arrays, *_: object) -> Cotangents:
    return [ReduceScatter(operation.communicator, SUM).apply(*cotangents)]


@transpose_rule.register(ReduceScatter)
def _(operation: ReduceScatter, cotangents: Arrays, *_: object) -> Cotangents:
    return [AllGather(operation.communicator, shared=False).apply(*cotangents)]


@transpose_rule.register(AllGatherV)
def _(operation: AllGatherV, cotangents: Arrays, *_: object) -> Cotangents:
    back = ReduceScatterV(operation.communicator, SUM, operation.counts)
    return [back.apply(*cotangents)]


@transpose_rule.register(ReduceScatterV)
def _(operation: ReduceScatterV, cotangents: Arrays, *_: object) -> Cotangents:
    back = AllGatherV(operation.communicator, operation.counts, shared=False)
    return [back.apply(*cotangents)]


@transpose_rule.register(AllGatherVRows)
def _(
    operation: AllGatherVRows, cotangents: Arrays, types: Types, numbers: Arrays
) -> Cotangents:
    total = AllReduce(operation.communicator, SUM, shared=False).apply(*cotangents)
    return [operation.own_cotangent(total, *numbers)]


@transpose_rule.register(AllReduce)
@transpose_rule.register(AllToAll)
def _(operation: AllReduce | AllToAll, cotangents: Arrays, *_: object) -> Cotangents:
    return [operation.apply(*cotangents)]


@transpose_rule.register(AllToAllV)
def _(operation: AllToAllV, cotangents: Arrays, *_: object) -> Cotangents:
    counts = (operation.recvcounts, operation.sendcounts)
    return [AllToAllV(operation.communicator, *counts).apply(*cotangents)]


@transpose_rule.register(AllToAllVRows)
def _(
    operation: AllToAllVRows, cotangents: Arrays, types: Types, numbers: Arrays
) -> Cotangents:
    (x,), (sendcounts, recvcounts) = types, numbers
    back = AllToAllVRows(operation.communicator, capacity=x.shape[0])
    return [back.apply(*cotangents, recvcounts, sendcounts)]


@transpose_rule.register(Scan)
def _(operation: Scan, cotangents: Arrays, *_: object) -> Cotangents:
    return [replace(operation, reverse=not operation.reverse).apply(*cotangents)]


@transpose_rule.register(ExScan)
def _(operation: ExScan, cotangents: Arrays, *_: object) -> Cotangents:
    (cotangent,) = cotangents
    zeros = jnp.zeros_like(cotangent)
    result = replace(operation, reverse=not operation.reverse).apply(cotangent, zeros)
    if operation.is_completed:
        return [result, zeros]
    return [result, choose(operation.is_first, cotangent, zeros)]


# With a root.


@transpose_rule.register(Bcast)
def _(operation: Bcast, cotangents: Arrays, types: Types, numbers: Arrays) -> Cotangents:
    back = Reduce(operation.communicator, SUM, operation.root)
    total = back.apply(*cotangents, *numbers)
    return [operation.at_root(total, zeros_after(total), numbers)]


@transpose_rule.register(Reduce)
def _(operation: Reduce, cotangents: Arrays, types: Types, numbers: Arrays) -> Cotangents:
    (cotangent,) = cotangents
    back = Bcast(operation.communicator, operation.root, shared=False)
    total = back.apply(cotangent, *numbers)
    return [operation.at_root(total, total + cotangent, numbers)]


@transpose_rule.register(Gather)
def _(operation: Gather, cotangents: Arrays, types: Types, numbers: Arrays) -> Cotangents:
    (cotangent,) = cotangents
    part = Scatter(operation.communicator, operation.root).apply(cotangent, *numbers)
    return [part if operation.has_arrays_of_root else part + cotangent]


@transpose_rule.register(Scatter)
def _(operation: Scatter, cotangents: Arrays, types: Types, numbers: Arrays) -> Cotangents:
    gathered = Gather(operation.communicator, operation.root).apply(*cotangents, *numbers)
    # Where all have the result, that is zero on those other than the root.
    return [gathered if operation.has_arrays_of_root else zeros_after(gathered)]


@transpose_rule.register(GatherV)
def _(operation: GatherV, cotangents: Arrays, *_: object) -> Cotangents:
    (cotangent,) = cotangents
    back = ScatterV(operation.communicator, operation.root, operation.counts)
    part = back.apply(cotangent)
    return [part if operation.is_root else part + cotangent]


@transpose_rule.register(ScatterV)
def _(operation: ScatterV, cotangents: Arrays, *_: object) -> Cotangents:
    back = GatherV(operation.communicator, operation.root, operation.counts)
    gathered = back.apply(*cotangents)
    return [gathered if operation.is_root else zeros_after(gathered)]


# Between neighbors, each of which has a cotangent of its own for what it was sent.


@transpose_rule.register(NeighborAllGather)
def _(operation: NeighborAllGather, cotangents: Arrays, *_: object) -> Cotangents:
    back = NeighborAllToAll(operation.communicator, backwards=True)
    of_neighbors = back.apply(*cotangents)
    return [jnp.sum(of_neighbors, axis=0, dtype=of_neighbors.dtype)]


@transpose_rule.register(NeighborAllGatherV)
def _(
    operation: NeighborAllGatherV, cotangents: Arrays, types: Types, numbers: Arrays
) -> Cotangents:
    (x,) = types
    _, destinations = neighbors_in(operation.communicator)
    recvcounts = (x.shape[0],) * len(destinations)
    back = NeighborAllToAllV(
        operation.communicator, operation.counts, recvcounts, backwards=True
    )
    rows = back.apply(*cotangents)
    of_neighbors = rows.reshape(len(destinations), *x.shape)
    return [jnp.sum(of_neighbors, axis=0, dtype=rows.dtype)]


@transpose_rule.register(NeighborAllToAll)
def _(operation: NeighborAllToAll, cotangents: Arrays, *_: object) -> Cotangents:
    return [replace(operation, backwards=not operation.backwards).apply(*cotangents)]


@transpose_rule.register(NeighborAllToAllV)
def _(operation: NeighborAllToAllV, cotangents: Arrays, *_: object) -> Cotangents:
    back = replace(
        operation,
        sendcounts=operation.recvcounts,
        recvcounts=operation.sendcounts,
        backwards=not operation.backwards,
    )
    return [back.apply(*cotangents)]


# Messages. A cotangent goes back the way of its message.


@transpose_rule.register(SendRecv)
def _(operation: SendRecv, cotangents: Arrays, types: Types, numbers: Arrays) -> Cotangents:
    (cotangent,) = cotangents
    sendbuf, _, *mark = types
    # It has a tag that only its sender knows.
    back = SendRecv(
        operation.communicator,
        source=operation.dest,
        dest=operation.source,
        sendtag=operation.sendtag,
        recvtag=ANY_TAG,
    )
    zeros = jnp.zeros(sendbuf.shape, sendbuf.dtype)
    send_cotangent = back.apply(cotangent, zeros, *numbers)
    zeros = jnp.zeros_like(cotangent)
    recv_cotangent = where_null(operation.source, numbers, cotangent, zeros)
    return [send_cotangent, recv_cotangent, *(None for _ in mark)]


@transpose_rule.register(Exchange)
def _(operation: Exchange, cotangents: Arrays, types: Types, numbers: Arrays) -> Cotangents:
    sendbuf = types[: operation.sent.count_leaves()]
    zeros = [jnp.zeros(x.shape, x.dtype) for x in sendbuf]
    back = Exchange(
        operation.communicator, sent=operation.received, received=operation.sent
    )
    send_cotangents = back.bind(*cotangents, *zeros, *numbers)
    # A result does not depend on `recvbuf`, except if that is the result.
    recv_cotangents = [
        where_null(rank, numbers, cotangent, jnp.zeros_like(cotangent))
        for rank, cotangent in zip(
            operation.received.ranks_of_leaves(), cotangents, strict=True
        )
    ]
    return [*send_cotangents, *recv_cotangents]


@transpose_rule.register(LinearSend)
def _(
    operation: LinearSend, cotangents: Arrays, types: Types, numbers: Arrays
) -> Cotangents:
    x, _, origin = types
    assert isinstance(origin, Array)
    communicator, plain = operation.communicator, operation.plain
    back = LinearRecv(communicator, Recv(communicator, plain.dest, plain.tag))
    zeros = jnp.zeros(x.shape, x.dtype)
    return [*back.bind_back(zeros, *cotangents, origin, *numbers), None]


@transpose_rule.register(LinearRecv)
def _(
    operation: LinearRecv, cotangents: Arrays, types: Types, numbers: Arrays
) -> Cotangents:
    cotangent, token_cotangent = cotangents
    x, _, origin = types
    assert isinstance(origin, Array)
    communicator, plain = operation.communicator, operation.plain
    # The tag with which the message came is not known: it is taken to be `send`'s default.
    tag = 0 if plain.tag == ANY_TAG else plain.tag
    back = LinearSend(communicator, Send(communicator, plain.source, tag))
    (token,) = back.bind_back(cotangent, token_cotangent, origin, *numbers)
    zeros = jnp.zeros(x.shape, x.dtype)
    return [where_null(plain.source, numbers, cotangent, zeros), token, None]
