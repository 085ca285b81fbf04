"""Numbers, sizes and tables as text.

Imports nothing: commands use it where neither MPI nor JAX can be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_number(value: float) -> str:
    """A number with three digits, or with all of those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def unit_of(size: float) -> tuple[int, str]:
    """The unit to give a number of bytes in: its factor and name."""
    return next((unit for unit in _UNITS if size >= unit[0]), (1, "B"))


def format_size(size: float) -> str:
    """A number of bytes: "80 B", "1.21 KiB", "4 MiB"."""
    factor, unit = unit_of(size)
    return f"{format_number(size / factor)} {unit}"


def align(
    rows: Sequence[Sequence[str]], pad: Callable[[str, int], str] = str.ljust
) -> list[tuple[str, ...]]:
    """The rows of a table, with all cells of a column padded to one width."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [tuple(map(pad, row, widths)) for row in rows]
