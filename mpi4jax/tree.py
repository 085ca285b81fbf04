"""Older names of operations, from the time when the others took no trees."""

import typing as _typing

if _typing.TYPE_CHECKING:
    from ._default_api import tree as _forms
else:
    from ._internal.environment import settings as _settings
    from .experimental.tokens import tree as _token_forms
    from .notoken import tree as _notoken_forms

    _forms = _token_forms if _settings.has_tokens else _notoken_forms

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
