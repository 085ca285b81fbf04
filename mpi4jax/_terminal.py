"""The terminal to which a command prints: its width and colors.

Imports nothing but Python's own modules and `_text.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NamedTuple, TextIO

from ._text import wrap

#: Number of characters in a line of any terminal.
WIDTH = 80

#: Environment variables of launchers. Open MPI's launcher gives ranks a terminal, and
#: forwards its content to the launcher's own output, which may be no terminal.
_LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class Terminal(NamedTuple):
    """The width of a stream, and whether it shows colors."""

    #: The number of characters in a line.
    width: int = WIDTH
    has_colors: bool = False

    def heading(self, text: str) -> str:
        return self._paint("1", text)

    def good(self, text: str) -> str:
        return self._paint("32", text)

    def warning(self, text: str) -> str:
        return self._paint("33", text)

    def error(self, text: str) -> str:
        return self._paint("31", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_colors and text else text


#: The terminal for text that is not printed at once.
PLAIN = Terminal()


def of(stream: TextIO | None = None) -> Terminal:
    """The terminal behind a stream (by default sys.stdout), which may be a file as well.

    The width is at least 80 characters, or more by COLUMNS. There are no colors under a
    launcher, or if NO_COLOR is set.
    """
    environ = os.environ
    stream = sys.stdout if stream is None else stream
    width = max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    wants_colors = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    is_launched = any(name in environ for name in _LAUNCHED)
    return Terminal(width, wants_colors and not is_launched and stream.isatty())


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a text in lines that fit the stream (by default sys.stdout)."""
    print(wrap(text, of(stream).width), file=stream, flush=True)
