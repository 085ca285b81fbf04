"""What is told of a profile: a text, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Row(NamedTuple):
    """The calls of one operation on one line, by all processes."""

    operation: str
    #: The Python line, or nothing for eager calls.
    line: str
    #: The number of calls, of all processes.
    calls: int
    #: The bytes that all processes passed for sending (or, if there are none, received).
    bytes: int
    #: The seconds in these calls, of each process.
    seconds: tuple[float, ...]
    #: The part of these in which each process waited for another one to begin its call.
    waiting: tuple[float, ...]


class Result(NamedTuple):
    """What all processes did."""

    #: The seconds of the whole.
    elapsed: float
    #: By the time that they took, the longest first.
    rows: tuple[Row, ...]
    #: The bytes of messages from each process (first index) to each other one.
    traffic: Array
    #: The number of calls that could not be written, of all processes.
    lost: int

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.traffic)

    @property
    def seconds(self) -> Array:
        """The seconds in MPI, of each process."""
        return sum((np.array(row.seconds) for row in self.rows), np.zeros(self.size))

    @property
    def waiting(self) -> Array:
        """The seconds of it in which each process waited for another one."""
        return sum((np.array(row.waiting) for row in self.rows), np.zeros(self.size))


def together(rows: Iterable[Row]) -> list[Row]:
    """What operations took, whatever their lines, the longest first."""
    found: dict[str, Row] = {}
    for row in rows:
        known = found.get(row.operation)
        found[row.operation] = row if known is None else _sum(known, row)
    return sorted(found.values(), key=lambda row: -sum(row.seconds))


def _sum(a: Row, b: Row) -> Row:
    return Row(
        a.operation,
        "",
        a.calls + b.calls,
        a.bytes + b.bytes,
        tuple(map(sum, zip(a.seconds, b.seconds, strict=True))),
        tuple(map(sum, zip(a.waiting, b.waiting, strict=True))),
    )


def text_of(result: Result) -> str:
    """The tables that are printed."""
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
    if result.lost:
        lines.append(f"{_count(result.lost, 'call', 'calls')} could not be written")
    for name, rows in (("operation", together(result.rows)), ("line", result.rows)):
        lines += ["", *_table(name, rows, result.elapsed)]
    return "\n".join(lines)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


#: The columns of a table but for the last one.
_COLUMNS: dict[str, Callable[[Row, float], str]] = {
    "calls": lambda row, _: str(row.calls),
    "bytes": lambda row, _: _size(row.bytes),
    "mean": lambda row, _: _duration(_mean(row.seconds)),
    "max": lambda row, _: _duration(max(row.seconds)),
    "max/mean": lambda row, _: f"{max(row.seconds) / (_mean(row.seconds) or 1):.2f}",
    "waiting": lambda row, _: _duration(_mean(row.waiting)),
    "moving": lambda row, _: _duration(_mean(row.seconds) - _mean(row.waiting)),
    "of the run": lambda row, elapsed: f"{100 * _mean(row.seconds) / elapsed:.1f} %",
}


def _table(name: str, rows: Iterable[Row], elapsed: float) -> list[str]:
    """A table: numbers to the right, and in the end what they are about."""
    cells = [[*_COLUMNS, f"by {name}"]]
    for row in rows:
        text = row.operation if name == "operation" else f"{row.operation}  {row.line}"
        cells.append(
            [column(row, elapsed) for column in _COLUMNS.values()] + [text.strip()]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([*map(str.rjust, row[:-1], widths[:-1]), row[-1]]) for row in cells]


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _size(number: float) -> str:
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} B"


def draw(result: Result) -> Any:
    """A picture: the time of each process, and who sends how much to whom."""
    from matplotlib.figure import Figure  # which mpi4jax does not need otherwise

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    bars, matrix = figure.subplots(1, 2, width_ratios=(3, 2))
    ranks = np.arange(result.size)
    below = np.zeros(result.size)
    for row in together(result.rows):
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
    largest = float(result.traffic.max(initial=0))
    factor, unit = next(
        (pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= pair[0]),
        (1, "bytes"),
    )
    image = matrix.imshow(result.traffic / factor, cmap="Blues", vmin=0)
    matrix.set(xlabel="to rank", ylabel="from rank", title=f"Messages, {unit}")
    for axis in (matrix.xaxis, matrix.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=matrix)
    return figure
