"""The operations in both forms, with tokens and without, each made from one function."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from . import config
from .operations.allgather import allgather
from .operations.allgatherv import allgatherv
from .operations.allreduce import allreduce
from .operations.alltoall import alltoall
from .operations.alltoallv import alltoallv
from .operations.barrier import barrier
from .operations.bcast import bcast
from .operations.exscan import exscan
from .operations.gather import gather
from .operations.gatherv import gatherv
from .operations.recv import recv
from .operations.reduce import reduce
from .operations.reduce_scatter import reduce_scatter
from .operations.scan import scan
from .operations.scatter import scatter
from .operations.scatterv import scatterv
from .operations.send import send
from .operations.sendrecv import sendrecv
from .token import with_tokens, without_tokens

_OPERATIONS = (
    allgather,
    allgatherv,
    allreduce,
    alltoall,
    alltoallv,
    barrier,
    bcast,
    exscan,
    gather,
    gatherv,
    recv,
    reduce,
    reduce_scatter,
    scan,
    scatter,
    scatterv,
    send,
    sendrecv,
)

#: The API of mpi4jax 0.2 to 0.7.
token = SimpleNamespace(**{f.__name__: with_tokens(f) for f in _OPERATIONS})
#: The API of mpi4jax 0.8 and later.
notoken = SimpleNamespace(**{f.__name__: without_tokens(f) for f in _OPERATIONS})
#: The API at the top level.
default = (
    notoken if config.choice("MPI4JAX_API", "token", "notoken") == "notoken" else token
)

_CAPITALISED = ("Allreduce", "Bcast", "Recv", "Send", "Sendrecv")


def capitalised(name: str) -> Callable[..., Any]:
    """The form that an operation had in mpi4jax 0.2: all arguments may be positional."""
    if name not in _CAPITALISED:
        raise AttributeError(f"module 'mpi4jax' has no attribute {name!r}")
    function = getattr(token, name.lower())
    parameters = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def deprecated(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            f"mpi4jax.{name} is deprecated, use mpi4jax.{name.lower()} instead",
            FutureWarning,
            stacklevel=2,
        )
        return function(**dict(zip(parameters, args, strict=False)), **kwargs)

    deprecated.__name__ = name
    return deprecated
