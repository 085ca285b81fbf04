"""The operations on whole trees of arrays, with tokens or without as at the top level."""

import typing as _typing

if _typing.TYPE_CHECKING:
    from ._line import tree as _forms
else:
    from . import _tree_notoken, _tree_tokens
    from ._internal.environment import settings as _settings

    _forms = _tree_tokens if _settings.has_tokens else _tree_notoken

allgather = _forms.allgather
allreduce = _forms.allreduce
alltoall = _forms.alltoall
bcast = _forms.bcast
gather = _forms.gather
recv = _forms.recv
reduce = _forms.reduce
reduce_scatter = _forms.reduce_scatter
scan = _forms.scan
scatter = _forms.scatter
send = _forms.send
sendrecv = _forms.sendrecv

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]
