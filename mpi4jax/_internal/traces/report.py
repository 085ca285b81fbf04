"""Reports of a profile: a text and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpi4jax._terminal import PLAIN, Terminal
from mpi4jax._text import format_size, layout, unit_of, wrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Seconds: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Row(NamedTuple):
    """The calls of one operation on one line, in all processes."""

    operation: str
    #: The Python line, empty for eager calls.
    line: str
    #: The number of calls in all processes.
    calls: int
    #: The number of bytes that all processes sent (or received, if they sent none).
    bytes: int
    #: The seconds of each process in these calls.
    seconds: tuple[float, ...]
    #: The seconds in which each process waited for another one to begin its call.
    waiting: tuple[float, ...]


class Result(NamedTuple):
    """A profile of all processes."""

    #: The seconds from the begin of the profile to its end.
    elapsed: float
    #: The rows by their time, the longest first.
    rows: tuple[Row, ...]
    #: The number of bytes in messages from each process (first index) to each other one.
    traffic: Bytes
    #: The number of calls in all processes that could not be written.
    lost: int

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.traffic)

    @property
    def seconds(self) -> Seconds:
        """The seconds of each process in MPI."""
        return sum((np.array(row.seconds) for row in self.rows), np.zeros(self.size))

    @property
    def waiting(self) -> Seconds:
        """The seconds in MPI in which each process waited for another one."""
        return sum((np.array(row.waiting) for row in self.rows), np.zeros(self.size))


def by_operation(rows: Iterable[Row]) -> list[Row]:
    """One row for each operation, the longest first."""
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        rows_of.setdefault(row.operation, []).append(row)
    sums = [_sum(operation, parts) for operation, parts in rows_of.items()]
    return sorted(sums, key=lambda row: -sum(row.seconds))


def _sum(operation: str, rows: Sequence[Row]) -> Row:
    return Row(
        operation,
        "",
        calls=sum(row.calls for row in rows),
        bytes=sum(row.bytes for row in rows),
        seconds=tuple(map(sum, zip(*(row.seconds for row in rows), strict=True))),
        waiting=tuple(map(sum, zip(*(row.waiting for row in rows), strict=True))),
    )


def text_of(result: Result, terminal: Terminal = PLAIN) -> str:
    """The text of a profile: a summary, and tables by operation and by line."""
    seconds, waiting = result.seconds, result.waiting
    most, least = int(seconds.argmax()), int(seconds.argmin())

    def share(part: float) -> str:
        return f"{100 * part / result.elapsed:.1f} %"

    lines = [
        f"{_count(result.size, 'process', 'processes')}, {_duration(result.elapsed)}: "
        f"{share(seconds.mean())} of the time in MPI, "
        f"{share(waiting.mean())} waiting for others",
        f"most in MPI: rank {most} with {share(seconds[most])}, "
        f"least: rank {least} with {share(seconds[least])}",
    ]
    lines = [wrap(line, terminal.width) for line in lines]
    if result.lost:
        lost = f"{_count(result.lost, 'call', 'calls')} could not be written"
        lines.append(terminal.warning(lost))
    for name, rows in (("operation", by_operation(result.rows)), ("line", result.rows)):
        lines += ["", *_table(name, rows, result.elapsed, terminal)]
    return "\n".join(lines)


def _count(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


#: The columns of a table but for the last one.
_COLUMNS: dict[str, Callable[[Row, float], str]] = {
    "calls": lambda row, _: str(row.calls),
    "bytes": lambda row, _: format_size(row.bytes),
    "mean": lambda row, _: _duration(_mean(row.seconds)),
    "max": lambda row, _: _duration(max(row.seconds)),
    "max / mean": lambda row, _: f"{max(row.seconds) / (_mean(row.seconds) or 1):.2f}",
    "waiting": lambda row, _: _duration(_mean(row.waiting)),
    "moving": lambda row, _: _duration(_mean(row.seconds) - _mean(row.waiting)),
    "of the run": lambda row, elapsed: f"{100 * _mean(row.seconds) / elapsed:.1f} %",
}


def _table(name: str, rows: Sequence[Row], elapsed: float, terminal: Terminal) -> list[str]:
    """The lines of a table: numbers aligned to the right, then the operation and its line.

    Where these do not fit behind the numbers, the Python lines are below the numbers, or
    both.
    """
    numbers = [[column(row, elapsed) for column in _COLUMNS.values()] for row in rows]
    operations = [row.operation for row in rows]
    places = [f" at {row.line}" if row.line and name == "line" else "" for row in rows]
    whole = list(map(str.__add__, operations, places))
    nothing = [""] * len(rows)
    lines: list[str] = []
    for behind, below in ((whole, nothing), (operations, places), (nothing, whole)):
        heads, body = layout(
            [*_COLUMNS, f"by {name}"],
            [[*cells, label] for cells, label in zip(numbers, behind, strict=True)],
            [*[str.rjust] * len(_COLUMNS), str.ljust],
            terminal.width,
        )
        lines = [*map(terminal.heading, heads)]
        for line, text in zip(body, below, strict=True):
            lines.append(line)
            if text:
                lines.append("    " + wrap(text.strip(), terminal.width - 4, indent=6))
        if all(len(line) <= terminal.width for line in body):
            break
    return lines


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def draw(result: Result) -> Figure:
    """A figure of a profile: the time of each process, and the traffic between them."""
    from matplotlib.figure import Figure  # a requirement of this function only

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    bars, matrix = figure.subplots(1, 2, width_ratios=(3, 2))
    ranks = np.arange(result.size)
    below = np.zeros(result.size)
    for row in by_operation(result.rows):
        moving = np.subtract(row.seconds, row.waiting)
        (first, *_) = bars.bar(ranks, moving, bottom=below, label=row.operation)
        below += moving
        color = first.get_facecolor()
        name = f"{row.operation}, waiting"
        bars.bar(
            ranks, row.waiting, bottom=below, label=name, color=color, alpha=0.4, hatch="//"
        )
        below += row.waiting
    bars.set(
        xlabel="rank",
        ylabel="seconds in MPI",
        title=f"Time in MPI, of {_duration(result.elapsed)}",
    )
    bars.xaxis.get_major_locator().set_params(integer=True)
    bars.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
    factor, unit = unit_of(result.traffic.max(initial=0))
    image = matrix.imshow(result.traffic / factor, cmap="Blues", vmin=0)
    matrix.set(xlabel="to rank", ylabel="from rank", title=f"Messages, {unit}")
    for axis in (matrix.xaxis, matrix.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=matrix)
    return figure
