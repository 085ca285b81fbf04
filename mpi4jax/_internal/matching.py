"""Which calls of several processes belong together.

Calls come in the order in which they began, on whichever process.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .lines import Half
from .tracefile import Call, Process, is_between_neighbors

Array = np.ndarray[Any, Any]

#: What belongs to calls that are never found is not looked for after so many others.
_MOST_WAITING = 1 << 16


class Part(NamedTuple):
    """The part of a process in something that several do."""

    process: Process
    call: Call
    #: Where the call is drawn.
    track: int


class Collectives:
    """Finds the calls by which all processes of a communicator do one thing."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Any, list[Part]] = OrderedDict()

    def add(self, part: Part) -> list[Part]:
        """Add a call. Gives those of all processes if this was the last, or else none."""
        process, call, _ = part
        communicator = process.communicators.get(call.communicator)
        if communicator is None:
            return []
        # The name of the operation keeps apart what a mistake in the program mixes.
        key = communicator.key, call.sequence, process.operations[call.operation]
        parts = self._waiting.setdefault(key, [])
        parts.append(part)
        if len(parts) == len(communicator.members):
            return self._waiting.pop(key)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)
        return []


class Message(NamedTuple):
    """A message, by the call that sent it and the one that received it."""

    sent: Part
    received: Part


class _End(NamedTuple):
    """A side of a message, and the call that it belongs to."""

    part: Part
    half: Half


class Messages:
    """Finds the call that received what another one sent, by MPI's rule (MPI-4.1 §3.5).

    Messages from one process to another do not overtake each other: a receive gets the
    first one with its tag. One from any process is taken to get the one sent first.
    """

    def __init__(self) -> None:
        #: By communicator and receiver: by sender, what was sent.
        self._sent: dict[Any, dict[int, deque[_End]]] = defaultdict(
            lambda: defaultdict(lambda: deque(maxlen=_MOST_WAITING))
        )
        #: By the same: what receives.
        self._receiving: dict[Any, deque[_End]] = defaultdict(
            lambda: deque(maxlen=_MOST_WAITING)
        )

    def add(self, part: Part) -> Iterator[Message]:
        """Add a call. Gives the messages of which both sides are known now."""
        process, call, _ = part
        communicator = process.communicators.get(call.communicator)
        if communicator is None:
            return
        members = communicator.members
        # Those between neighbors travel on a communicator of ours.
        key = communicator.key, is_between_neighbors(process.operations[call.operation])
        sent, received = process.halves(call)
        for half in sent:
            if 0 <= half.rank < len(members):
                receiver = members[half.rank]
                self._sent[key, receiver][process.rank].append(_End(part, half))
                yield from self._match((key, receiver), call.begin)
        for half in received:
            self._receiving[key, process.rank].append(_End(part, half))
        if received:
            yield from self._match((key, process.rank), call.begin)

    def finish(self) -> Iterator[Message]:
        """Give what is left, when there are no more calls."""
        for key in list(self._receiving):
            yield from self._match(key, None)

    def _match(self, key: Any, now: int | None) -> Iterator[Message]:
        """The messages to a receiver on a communicator, one after another."""
        receiving, senders = self._receiving.get(key), self._sent[key]
        while receiving:
            received, half = receiving[0]
            process, call, _ = received
            if half.rank >= 0:
                members = process.communicators[call.communicator].members
                candidates = [senders[members[half.rank]]]
            elif now is None or now > call.end:
                candidates = list(senders.values())
            else:
                return  # somebody may have sent one earlier, who has not been looked at yet
            found = [
                (sent.part.call.begin, place, queue)
                for queue in candidates
                for place, sent in [_first(queue, half.tag)]
                if sent is not None
            ]
            if not found:
                if half.rank >= 0 and now is not None:
                    return
                receiving.popleft()
                continue
            _, place, queue = min(found, key=lambda each: each[:2])
            receiving.popleft()
            sent = queue[place].part
            del queue[place]
            yield Message(sent, received)


def _first(queue: deque[_End], tag: int) -> tuple[int, _End | None]:
    """The first message with a tag (any, if that is negative), and its place."""
    for place, end in enumerate(queue):
        if tag < 0 or end.half.tag == tag:
            return place, end
    return 0, None


def first_messages(sent: Array, received: Array) -> Array:
    """The places of the messages that receives get, by their tags; -1 where there is none.

    All messages come from one process, and the receives are one after another.
    """
    is_any = received < 0
    if is_any.all():
        places = np.arange(len(received))
        return np.where(places < len(sent), places, -1)
    if not is_any.any():
        # The n-th receive with a tag gets the n-th message with it.
        found = np.full(len(received), -1)
        for tag in np.unique(received):
            places, wanted = np.flatnonzero(sent == tag), np.flatnonzero(received == tag)
            count = min(len(places), len(wanted))
            found[wanted[:count]] = places[:count]
        return found
    left = deque(enumerate(sent.tolist()))
    found = np.full(len(received), -1)
    for n, tag in enumerate(received.tolist()):
        fits = (k for k, (_, has) in enumerate(left) if tag < 0 or has == tag)
        place = next(fits, None)
        if place is not None:
            found[n] = left[place][0]
            del left[place]
    return found


#: One process sends to all others, or gets something from each.
FROM_ROOT = {"bcast", "scatter", "scatterv"}
TO_ROOT = {"gather", "gatherv", "reduce"}


def waiting(operation: str, parts: list[Part]) -> Iterator[tuple[Part, Part]]:
    """Who waits in a collective call, and for whom: the last one that it needs.

    The one who waits did so from the beginning of its call to that of the other one's, or
    to its end, if the other one came later.
    """
    last = max(parts, key=lambda part: part.call.begin)
    for part in parts:
        process, call, _ = part
        needed = last
        if operation in FROM_ROOT:
            root = process.communicators[call.communicator].members[call.root]
            needed = next(other for other in parts if other.process.rank == root)
        elif operation in TO_ROOT:
            members = process.communicators[call.communicator].members
            if process.rank != members[call.root]:
                continue
        if call.begin < needed.call.begin and call.end:
            yield part, needed
