"""The terminal that a command prints to: its width, and colors where it shows them.

Imports nothing but Python's own modules and `_text.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NamedTuple, TextIO

from ._text import wrap

#: The number of characters that fit every terminal.
WIDTH = 80

#: Variables of launchers. Open MPI's gives ranks a terminal of its own, and passes what
#: they print there on to wherever its own output goes.
_LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class Terminal(NamedTuple):
    """How wide a stream is, and whether it has colors."""

    #: The characters in a line.
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


#: For what is not printed at once.
PLAIN = Terminal()


def of(stream: TextIO | None = None) -> Terminal:
    """The terminal behind a stream (by default sys.stdout), which may be a file as well.

    Nothing is made narrower than 80 characters, and COLUMNS allows more. There are no
    colors under a launcher, or if NO_COLOR is set.
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
