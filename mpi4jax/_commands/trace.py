"""`python -m mpi4jax trace folder`: a timeline of a run."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import heapq
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from mpi4jax._internal.matching import Collectives, Message, Messages, Part, waiting
from mpi4jax._internal.tracefile import (
    NONE,
    Call,
    Process,
    Span,
    TraceError,
    is_between_neighbors,
    read,
)

_SECOND = 10**9


def run(given: argparse.Namespace) -> int:
    output = given.output or given.folder / "trace.json.gz"
    try:
        processes = read(given.folder)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 1
    with opened(output) as file:
        timeline = Timeline(file, processes, *given.between)
        timeline.write()
    print(timeline.summary())
    for process in processes:
        print(about(process))
    print(f"{output}: open it at https://ui.perfetto.dev")
    return 0


def opened(path: Path) -> contextlib.AbstractContextManager[TextIO]:
    """A file to write text to, compressed if its name says so."""
    if path.suffix == ".gz":
        # Most of the time goes into the text itself.
        return cast(TextIO, gzip.open(path, "wt", compresslevel=3))
    return open(path, "w")


def about(process: Process) -> str:
    """What to know about the times of a process."""
    text = f"rank {process.rank} on {process.facts['host']}: "
    if process.rank == 0:
        text += "its clock is that of the timeline"
    elif process.clocks.is_shared:
        text += "the clock of rank 0"
    elif process.clocks.error is None:
        text += "its clock was not compared with rank 0's"
    else:
        text += f"times are right to {process.clocks.error / 1000:.1f} µs"
        drift = process.clocks.drift
        if drift is None:
            text += ", and worse with every second, as there was no comparison at the end"
        else:
            text += f", after correcting a drift of {drift * 1e6:+.2f} µs per second"
    if process.lost is None:
        text += "; it has not got to its end"
    elif process.lost:
        text += f"; {process.lost} calls were too fast to be written"
    return text


class Timeline:
    """Events in the format that both viewers read (Chrome's trace events).

    A process of the run is one of the timeline's, and has tracks for its calls, and for
    what Python does. Nothing is held in memory but what is not matched yet.
    """

    def __init__(
        self, file: TextIO, processes: list[Process], begin: float, end: float
    ) -> None:
        self._file = file
        self._processes = processes
        self._start = min(process.started for process in processes)
        self._begin = self._start + begin * _SECOND
        self._end = self._start + end * _SECOND
        self._separator = ""
        #: When the last call on each track of a process ends.
        self._tracks: dict[int, list[int]] = {process.rank: [] for process in processes}
        self._names: dict[tuple[int, int, int], str] = {}
        self._details: dict[tuple[int, ...], str] = {}
        self._calls = 0
        self._messages = 0
        #: What is in flight, by rank and number: its name, and when it was started.
        self._flights: dict[tuple[int, int], tuple[str, int]] = {}
        self._flown = 0
        #: Calls that receive several messages: how many are not matched yet, and of those
        #: that are, the call that was waited for longest.
        self._waits: dict[tuple[int, int, int], tuple[int, Part, Part]] = {}

    def summary(self) -> str:
        processes, calls = len(self._processes), self._calls
        return f"{calls} calls of {processes} processes, {self._messages} messages"

    def write(self) -> None:
        """Write all events."""
        self._file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for process in self._processes:
            name = f"rank {process.rank} ({process.facts['host']})"
            self._name("process", process, 0, name)
            for span in process.spans():
                self._write_span(process, span)
        collectives, messages = Collectives(), Messages()
        for part in self._parts():
            process, call, _ = part
            if self._is_drawn(part):
                self._write_call(part)
            operation = process.operations[call.operation]
            if call.sequence and not is_between_neighbors(operation):
                self._write_waiting(collectives.add(part))
            else:
                self._write_messages(messages.add(part))
        self._write_messages(messages.finish())
        for _, received, needed in self._waits.values():
            self._write_wait(received, needed)
        self._file.write("\n]}\n")

    def _parts(self) -> Iterator[Part]:
        """All calls that are drawn or matter to them, in the order in which they began."""

        def of(process: Process) -> Iterator[tuple[int, int, Call]]:
            calls = process.calls(self._begin, self._end)
            return ((call.begin, process.rank, call) for call in calls)

        by_rank = {process.rank: process for process in self._processes}
        for _, rank, call in heapq.merge(*map(of, self._processes)):
            process = by_rank[rank]
            yield Part(process, call, self._track(process, call))

    def _is_drawn(self, part: Part) -> bool:
        return part.call.begin >= self._begin

    def _track(self, process: Process, call: Call) -> int:
        """Where to draw a call: beside those that are under way when it begins."""
        ends = self._tracks[process.rank]
        free = (track for track, end in enumerate(ends) if end <= call.begin)
        track = next(free, len(ends))
        if track == len(ends):
            ends.append(0)
            name = f"MPI ({track + 1})" if track else "MPI"
            self._name("thread", process, _FIRST_TRACK + track, name)
        # One that did not end is under way for good.
        ends[track] = call.end or sys.maxsize
        return _FIRST_TRACK + track

    def _emit(self, event: str) -> None:
        self._file.write(self._separator + event)
        self._separator = ",\n"

    def _place(self, process: Process, track: int) -> str:
        # Neither may be 0, which stands for an idle machine, nor the same in two processes.
        return f'"pid":{process.rank + 1},"tid":{(process.rank + 1) * 100 + track}'

    def _name(self, what: str, process: Process, track: int, name: str) -> None:
        place, text = self._place(process, track), json.dumps(name)
        self._emit(f'{{"ph":"M","name":"{what}_name",{place},"args":{{"name":{text}}}}}')

    def _time(self, time: int) -> str:
        """A time in microseconds since the beginning, to the nanosecond."""
        whole, rest = divmod(time - self._start, 1000)
        return f"{whole}.{rest:03}"

    def _slice(
        self,
        process: Process,
        track: int,
        name: str,
        begin: int,
        end: int,
        details: str = "{}",
    ) -> None:
        """Something that took its time. `name` and `details` are JSON."""
        duration = max(end - begin, 0)
        self._emit(
            f'{{"ph":"X","name":{name},{self._place(process, track)},'
            f'"ts":{self._time(begin)},"dur":{duration // 1000}.{duration % 1000:03},'
            f'"args":{details}}}'
        )

    def _write_span(self, process: Process, span: Span) -> None:
        if self._begin <= span.begin < self._end:
            track, name = _PYTHON[span.kind]
            if (process.rank, track, 0) not in self._names:
                self._names[process.rank, track, 0] = name
                self._name("thread", process, track, name)
            self._slice(process, track, json.dumps(span.name), span.begin, span.end)

    def _write_call(self, part: Part) -> None:
        process, call, track = part
        site = process.rank, call.operation, call.call_site
        name = self._names.get(site)
        if name is None:
            line = process.line(call)
            operation = process.operations[call.operation]
            name = json.dumps(f"{operation}  {line}" if line else operation)
            self._names[site] = name
        # Nearly all calls are equal to others but for their times and numbers.
        key = process.rank, *call._replace(begin=0, end=0, sequence=0, in_flight=0)
        details = self._details.get(key)
        if details is None:
            if len(self._details) > _MOST_DETAILS:
                self._details.clear()
            details = self._details[key] = json.dumps(described(process, call))[:-1]
        if not call.end:
            details += ', "end": "never"'
        number = f', "number": {call.sequence}' if call.sequence else ""
        end = call.end or call.begin
        self._slice(process, track, name, call.begin, end, f"{details}{number}}}")
        self._calls += 1
        if call.in_flight:
            self._write_flight(part, name, end)

    def _write_flight(self, part: Part, name: str, end: int) -> None:
        """Draw a bar from the start of an operation to the end of the wait for it."""
        process, call, _ = part
        flight = process.rank, call.in_flight
        if process.operations[call.operation] != "wait":
            self._flights[flight] = name, call.begin
            return
        started = self._flights.pop(flight, None)
        if started is None:
            return
        name, begin = started
        self._flown += 1
        for phase, time in (("b", begin), ("e", end)):
            self._emit(
                f'{{"ph":"{phase}","cat":"in flight","id":{self._flown},"name":{name},'
                f'"pid":{process.rank + 1},"tid":0,"ts":{self._time(time)}}}'
            )

    def _write_waiting(self, parts: list[Part]) -> None:
        if parts:
            process, call, _ = parts[0]
            for part, needed in waiting(process.operations[call.operation], parts):
                self._write_wait(part, needed)

    def _write_wait(self, part: Part, needed: Part) -> None:
        """Draw the time that a call waits for another one to begin, within the call."""
        error = (part.process.clocks.error or 0) + (needed.process.clocks.error or 0)
        # An arrow belongs to the innermost slice where it begins, which has to be the call.
        begin = part.call.begin + 1
        end = min(part.call.end, needed.call.begin)
        if end - begin > error:
            name = f'"waits for rank {needed.process.rank}"'
            self._slice(part.process, part.track, name, begin, end)
            if end < part.call.end:
                # Perfetto has arrows point to what begins later. Where a call waits for
                # its message, this is the rest of the call.
                self._slice(part.process, part.track, _REST, end, part.call.end)

    def _note_wait(self, received: Part, sent: Part) -> None:
        """Draw the same for a call that gets messages, when all of them are matched."""
        process, call, track = received
        key = process.rank, track, call.begin
        unmatched = len(process.halves(call).received), received, sent
        left, _, needed = self._waits.pop(key, unmatched)
        needed = max(needed, sent, key=lambda part: part.call.begin)
        if left > 1:
            self._waits[key] = left - 1, received, needed
        else:
            self._write_wait(received, needed)

    def _write_messages(self, messages: Iterator[Message]) -> None:
        for sent, received in messages:
            if not (self._is_drawn(sent) and self._is_drawn(received)):
                continue
            self._messages += 1
            if not (sent.call.end and received.call.end):
                continue
            self._note_wait(received, sent)
            # It leaves when the one call begins, and has come when the other one ends.
            last = max(received.call.end - 1, received.call.begin)
            for phase, part, time in (
                ('"s"', sent, sent.call.begin),
                ('"f","bp":"e"', received, last),
            ):
                self._emit(
                    f'{{"ph":{phase},"id":{self._messages},"name":"message","cat":"message",'
                    f'{self._place(part.process, part.track)},"ts":{self._time(time)}}}'
                )


#: The tracks of a process: what Python does, by the kind of span, and from there on calls.
_PYTHON = {"compile": (1, "JAX traces and compiles"), "eager": (2, "Eager calls in Python")}
_FIRST_TRACK = 3
#: What a call does that has waited.
_REST = '"moves bytes"'
#: So many texts are kept.
_MOST_DETAILS = 1 << 14


def described(process: Process, call: Call) -> dict[str, Any]:
    """The arguments of a call, in words."""
    communicator = process.communicators.get(call.communicator)
    nobody = process.facts["nobody"]
    found: dict[str, Any] = {"on": communicator.name if communicator else "?"}
    if call.op != NONE:
        operators = process.facts["operators"]
        known = call.op < len(operators)
        found["operator"] = operators[call.op] if known else f"operator {call.op}"
    if call.root != NONE:
        found["root"] = call.root
    several = process.several(call)
    for name, peer, tag in (
        ("to", call.dest, call.send_tag),
        ("from", call.source, call.recv_tag),
    ):
        if peer != NONE:
            found[name] = _peer(process, peer)
            found[f"tag {name}"] = _tag(tag)
    if several is not None:
        is_exchange = not call.sequence
        for name, size_name, halves in (
            ("to", "bytes sent", several.sent),
            ("from", "bytes received", several.received),
        ):
            found[name] = [_peer(process, half.rank) for half in halves]
            if is_exchange:
                # Along the edges of a topology, tags are ours.
                found[f"tags {name}"] = [_tag(half.tag) for half in halves]
                found[size_name] = sum(half.size for half in halves if half.rank != nobody)
        if is_exchange:
            # Of its arrays, the record has the first one.
            return found
    for name, size_name, count, dtype in (
        ("sends", "bytes sent", call.sent, call.sent_type),
        ("receives", "bytes received", call.received, call.received_type),
    ):
        if dtype:
            text, _ = process.facts["dtypes"].get(str(dtype), ("?", 0))
            found[name] = f"{text}[{count}]"
            found[size_name] = process.size(dtype, count)
    return found


def _peer(process: Process, rank: int) -> int | str:
    if rank >= 0:
        return rank
    return "nobody" if rank == process.facts["nobody"] else "anyone"


def _tag(tag: int) -> int | str:
    return tag if tag >= 0 else "any"
