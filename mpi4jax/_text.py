"""Numbers, sizes, sentences and tables as text.

Imports nothing but Python's own modules: commands use it where neither MPI nor JAX can be
imported.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_number(value: float) -> str:
    """A number with three digits, or with all digits before the point if these are more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def unit_of(size: float) -> tuple[int, str]:
    """The factor and name of the unit for a number of bytes."""
    return next((unit for unit in _UNITS if size >= unit[0]), (1, "B"))


def format_size(size: float) -> str:
    """A number of bytes as text: "80 B", "1.21 KiB", "4 MiB"."""
    factor, unit = unit_of(size)
    return f"{format_number(size / factor)} {unit}"


def wrap(text: str, width: int, indent: int = 2) -> str:
    """The text in lines of at most `width`, broken at blanks, continued with an indent.

    A word that is longer than a line, such as a path, stays whole, so it can be copied.
    """
    wrapper = textwrap.TextWrapper(
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapper.fill(line) for line in text.split("\n"))


def align(
    rows: Sequence[Sequence[str]], pad: Callable[[str, int], str] = str.ljust
) -> list[tuple[str, ...]]:
    """The rows of a table, with all cells of a column padded to one width."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [tuple(map(pad, row, widths)) for row in rows]


def layout(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    pads: Sequence[Callable[[str, int], str]],
    width: int,
) -> tuple[list[str], list[str]]:
    """The lines of a table's headings, and the lines of its rows.

    Headings take several lines if the table would be wider than `width` otherwise.
    """
    most = max(len(heading.split()) for heading in headings)
    for count in range(1, most + 1):
        heads = [_stack(heading, count) for heading in headings]
        height = max(map(len, heads))
        filled = [[*[""] * (height - len(head)), *head] for head in heads]
        cells = [*zip(*filled, strict=True), *rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            break
    lines = []
    for row in cells:
        triples = zip(pads, row, widths, strict=True)
        lines.append("  ".join(pad(cell, size) for pad, cell, size in triples).rstrip())
    return lines[:height], lines[height:]


def _stack(heading: str, count: int) -> list[str]:
    """A heading in at most `count` lines, as narrow as possible."""
    narrowest = max(map(len, heading.split()))
    for width in range(narrowest, len(heading) + 1):
        lines = textwrap.wrap(heading, width, break_on_hyphens=False)
        if len(lines) <= count:
            return lines
    return [heading]
