"""Calls that the core has written: their arrays, messages and communicators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpi4jax import _core

from ..arguments.dtypes import DATATYPES
from ..xla import call_sites
from ..xla.call_sites import Envelopes

#: An array of calls, or with a value for each call.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: The data type of a call as the core writes it: `Entry` in `rust/src/trace/entry.rs`.
ENTRY = np.dtype(_core.CALL_FIELDS)
#: Value of a field that an operation does not have.
NONE = -(2**31)


class CommunicatorInfo(NamedTuple):
    """A communicator, described equally in all of its processes."""

    #: A unique number of the communicator, which is the same in all of its processes.
    key: int
    #: The ranks in COMM_WORLD of the communicator's processes.
    members: tuple[int, ...]


#: A communicator as the core describes it: its number, its name, its members as runs
#: (first, stride, count), and its lineage, if it is a copy
#: (`rust/src/recorder/identify.rs`).
Description = tuple[int, str, list[tuple[int, int, int]], "list[tuple[int, int]] | None"]


def identify(tables: Sequence[Sequence[Description]]) -> list[dict[int, CommunicatorInfo]]:
    """The communicators of several processes, by their numbers in each of them."""
    keys = _core.identify_communicators([list(table) for table in tables])
    return [
        {
            comm_number: CommunicatorInfo(key, _ranks_in(members))
            for (comm_number, _, members, _), key in zip(table, own_keys, strict=True)
        }
        for table, own_keys in zip(tables, keys, strict=True)
    ]


def _ranks_in(runs: Iterable[tuple[int, int, int]]) -> tuple[int, ...]:
    return tuple(
        first + stride * index for first, stride, count in runs for index in range(count)
    )


#: Number of bytes of an element, by the code of its data type.
_ITEM_SIZES = np.zeros(256, np.int64)
for _name, (_code, _) in DATATYPES.items():
    _ITEM_SIZES[_code] = np.dtype(_name).itemsize


def array_sizes(calls: Array, way: str) -> Array:
    """Number of bytes of the array that each call has "sent", or "received"."""
    sizes: Array = calls[way] * _ITEM_SIZES[calls[f"{way}_type"]]
    return sizes


def envelopes_by_site(calls: Array) -> Iterator[tuple[int, Envelopes]]:
    """The envelopes of calls that may have several messages, by call site."""
    for site in np.unique(calls["call_site"]).tolist():
        envelopes = call_sites.envelopes_of(site)
        if envelopes is not None:
            yield site, envelopes


#: The data type of a message: its envelope, and the index of its call.
_MESSAGE = np.dtype([("call", "i8"), ("rank", "i8"), ("tag", "i8"), ("size", "i8")])
#: The fields of a call with the rank and the tag of its message.
_FIELDS = {"sent": ("dest", "send_tag"), "received": ("source", "recv_tag")}


def messages_of(calls: Array, way: str) -> Array:
    """All messages that calls have "sent", or "received", in the order of the calls.

    Messages of MPI.PROC_NULL and receives from MPI.ANY_SOURCE are left out.
    """
    has_envelopes = np.zeros(len(calls), bool)
    parts: list[tuple[Array, Array | int, Array | int, Array | int]] = []
    for site, envelopes in envelopes_by_site(calls):
        (indices,) = np.nonzero(calls["call_site"] == site)
        has_envelopes[indices] = True
        parts += ((indices, *envelope) for envelope in getattr(envelopes, way))
    (indices,) = np.nonzero(~has_envelopes)
    ranks, tags = (calls[field][indices] for field in _FIELDS[way])
    parts.append((indices, ranks, tags, array_sizes(calls[indices], way)))
    messages = np.zeros(sum(len(indices) for indices, *_ in parts), _MESSAGE)
    end = 0
    for part in parts:
        begin, end = end, end + len(part[0])
        for field, values in zip(_MESSAGE.names or (), part, strict=True):
            messages[field][begin:end] = values
    messages = messages[messages["rank"] >= 0]
    return messages[np.argsort(messages["call"], kind="stable")]
