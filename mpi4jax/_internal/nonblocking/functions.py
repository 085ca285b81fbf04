"""The nonblocking form of each operation (MPI-4.1 §3.7, §6.12), made from the blocking one.

The function of the blocking form is called, which checks its arguments. Where it calls the
operation, this is started.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..forms.token import set_signature
from ..operations._eager import starting
from ..operations.allgather import allgather
from ..operations.allgatherv import allgatherv
from ..operations.allreduce import allreduce
from ..operations.alltoall import alltoall
from ..operations.alltoallv import alltoallv
from ..operations.barrier import barrier
from ..operations.bcast import bcast
from ..operations.exchange import exchange
from ..operations.exscan import exscan
from ..operations.gather import gather
from ..operations.gatherv import gatherv
from ..operations.neighbor_allgather import neighbor_allgather
from ..operations.neighbor_allgatherv import neighbor_allgatherv
from ..operations.neighbor_alltoall import neighbor_alltoall
from ..operations.neighbor_alltoallv import neighbor_alltoallv
from ..operations.recv import recv
from ..operations.reduce import reduce
from ..operations.reduce_scatter import reduce_scatter
from ..operations.reduce_scatterv import reduce_scatterv
from ..operations.scan import scan
from ..operations.scatter import scatter
from ..operations.scatterv import scatterv
from ..operations.send import send
from ..operations.sendrecv import sendrecv
from .requests import Request, start_call

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibcast",
    "iexchange",
    "iexscan",
    "igather",
    "igatherv",
    "ineighbor_allgather",
    "ineighbor_allgatherv",
    "ineighbor_alltoall",
    "ineighbor_alltoallv",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "ireduce_scatterv",
    "iscan",
    "iscatter",
    "iscatterv",
    "isend",
    "isendrecv",
]


def nonblocking(function: Callable[P, R]) -> Callable[P, Request[R]]:
    """Make the nonblocking form of an operation."""
    blocking: Any = inspect.unwrap(function)
    name = f"i{blocking.__name__}"
    signature = _signature(blocking)

    @functools.wraps(blocking)
    def start(*args: P.args, **kwargs: P.kwargs) -> Request[R]:
        for parameter in kwargs:
            if parameter not in signature.parameters:
                text = f"{name}() got an unexpected keyword argument '{parameter}'"
                raise TypeError(text)
        try:
            with starting(start_call):
                request: Request[R] = blocking(*args, **kwargs)
        except (TypeError, ValueError) as error:
            # Name the function that the user has called, with a capital if there is one.
            text, *others = error.args or ("",)
            if str(text).lower().startswith(f"{blocking.__name__} "):
                called = name if text[0].islower() else name.capitalize()
                error.args = (called + text[len(blocking.__name__) :], *others)
            raise
        assert isinstance(request, Request), f"the core can't start {blocking.__name__}"
        return request

    del start.__wrapped__  # it has another signature
    start.__name__ = start.__qualname__ = name
    start.__module__ = __name__
    start.__doc__ = _describe(blocking, signature)
    set_signature(start, signature)
    return start


def _signature(blocking: Any) -> inspect.Signature:
    signature = inspect.signature(blocking)
    parameters = dict(signature.parameters)
    # MPI fills a status when it completes a receive, which is another call.
    parameters.pop("status", None)
    result = signature.return_annotation
    # With a capacity, counts have to be exchanged before rows are.
    if parameters.pop("capacity", None):
        del parameters["fill_value"]
        result = result.partition(" | tuple[")[0]
    return signature.replace(
        parameters=list(parameters.values()), return_annotation=f"Request[{result}]"
    )


def _describe(blocking: Any, signature: inspect.Signature) -> str:
    """The docstring of a nonblocking form, from that of the blocking one."""
    head, _, rest = blocking.__doc__.partition("\n    Arguments:\n")
    arguments, _, result = rest.partition("\n    Returns:\n")
    entries = re.split(r"^ {8}(?=\w)", arguments.rstrip() + "\n", flags=re.M)[1:]
    documented = [x for x in entries if re.split(r"\W", x)[0] in signature.parameters]
    returned = "A request, to be passed to :func:`wait` once."
    if not result:
        returned += " The result is None."
    return (
        f"Start :func:`{blocking.__name__}`, which :func:`wait` completes.\n\n"
        f"    {head.strip()}\n\n"
        f"    Arguments:\n{''.join(' ' * 8 + x for x in documented)}\n"
        f"    Returns:\n        {returned}\n\n    "
    )


iallgather = nonblocking(allgather)
iallgatherv = nonblocking(allgatherv)
iallreduce = nonblocking(allreduce)
ialltoall = nonblocking(alltoall)
ialltoallv = nonblocking(alltoallv)
ibarrier = nonblocking(barrier)
ibcast = nonblocking(bcast)
iexchange = nonblocking(exchange)
iexscan = nonblocking(exscan)
igather = nonblocking(gather)
igatherv = nonblocking(gatherv)
ineighbor_allgather = nonblocking(neighbor_allgather)
ineighbor_allgatherv = nonblocking(neighbor_allgatherv)
ineighbor_alltoall = nonblocking(neighbor_alltoall)
ineighbor_alltoallv = nonblocking(neighbor_alltoallv)
irecv = nonblocking(recv)
ireduce = nonblocking(reduce)
ireduce_scatter = nonblocking(reduce_scatter)
ireduce_scatterv = nonblocking(reduce_scatterv)
iscan = nonblocking(scan)
iscatter = nonblocking(scatter)
iscatterv = nonblocking(scatterv)
isend = nonblocking(send)
isendrecv = nonblocking(sendrecv)
