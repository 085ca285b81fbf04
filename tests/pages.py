"""The Python programs on the pages of the documentation.

A page is one program, its blocks from top to bottom. On the pages of `BY_SECTION`, each
section is one, after the blocks that come before the first section. Words behind `python`
in a block's first line, which are not shown, say what else it is:

- `fragment`: not a program; it only has to be valid Python.
- `own-process`, `own-process=NAME`: part of a program that needs a process of its own.
- `ranks=N`: its program is for N ranks.
- `needs=MODULE`: it is left out where there is no such module.
- `run-by=PATH`: the test in this file runs it, as it needs more than Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]

#: Those that are read by section.
BY_SECTION = ("README.md", "index.md", "sharp-bits.md", "usage.md")

WORDS = ("fragment", "own-process", "ranks", "needs", "run-by")


@dataclass(frozen=True)
class Block:
    """A block of a page, and the words behind `python` with their values."""

    path: Path
    section: str
    line: int
    words: dict[str, str]
    text: str

    @property
    def program(self) -> str:
        """The name of the program that it belongs to."""
        page = self.path.name
        if "own-process" in self.words:
            return " ".join(filter(None, (page, self.words["own-process"])))
        return f"{page}: {self.section}" if page in BY_SECTION and self.section else page

    def compiled(self) -> CodeType:
        """The code of the block, with the line numbers of the page."""
        return compile("\n" * self.line + self.text, self.path, "exec", dont_inherit=True)


@dataclass(frozen=True)
class Program:
    name: str
    blocks: tuple[Block, ...]

    @property
    def ranks(self) -> int | None:
        """The number of ranks that it is for, if it is for one only."""
        return next(
            (int(b.words["ranks"]) for b in self.blocks if "ranks" in b.words), None
        )

    @property
    def text(self) -> str:
        return "\n".join(block.text for block in self.blocks)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(path: Path) -> list[Block]:
    """The Python blocks of a page."""
    blocks, section, lines = [], "", path.read_text().splitlines()
    fence: re.Match | None = None
    for line_number, line in enumerate(lines, start=1):
        if fence is None:
            section = line[3:] if line.startswith("## ") else section
            fence, first = re.match(r"( *)(`{3,})(.*)", line), line_number
        elif line == fence[1] + fence[2]:
            language, *rest = fence[3].split() or [""]
            if language == "python":
                assert not fence[1], f"{path}:{first}: indented"
                words = dict((*word.split("="), "")[:2] for word in rest)
                assert {*words} <= {*WORDS}, f"{path}:{first}: {fence[3]}"
                text = "\n".join(lines[first : line_number - 1]) + "\n"
                blocks.append(Block(path, section, first, words, text))
            fence = None
    assert fence is None, f"{path}:{first}: has no end"
    return blocks


def block_run_by_test(page: str) -> Block:
    """The one block of a page that a test runs by itself."""
    (block,) = (b for b in blocks_of(ROOT / "docs" / page) if "run-by" in b.words)
    return block


def programs(own_process: bool) -> list[Program]:
    """Those that run in a process of their own, or the others."""
    result = []
    for path in pages():
        blocks = [
            block
            for block in blocks_of(path)
            if ("own-process" in block.words) == own_process
            and not {"fragment", "run-by"} & {*block.words}
        ]
        for name in dict.fromkeys(block.program for block in blocks):
            prelude = [b for b in blocks if b.program == path.name != name]
            own = [block for block in blocks if block.program == name]
            members = own if own_process else [*prelude, *own]
            result.append(Program(name, tuple(members)))
    return result
