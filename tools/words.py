"""Checks the words of our sources: names of questions, and doc comments.

    python tools/words.py [PATH ...]    lists what breaks a rule, by file and line

The rules, for Python and Rust:

- A function named `is_`, `has_` or `are_` answers with a bool.
- A doc comment does not begin with "The same": it stands without the one above it.
- A doc comment does not match `VAGUE`: it names what acts or is counted.

Doc comments are docstrings and `#:` in Python, `///` and `//!` in Rust.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from environments import ROOT, output_of

QUESTION = re.compile(r"_*(is|has|are)_")
ANSWER = re.compile(r"(?i:bool)|TypeGuard|Array|c_int")
#: Refused in doc comments.
REPEATED = re.compile(r"\AThe same\b")
VAGUE = re.compile(r"\A(?:Has|Have)\b|\b[Ss]o\s+many\b")


class Word(NamedTuple):
    """The return type of a `question`, or the text of a `doc` comment."""

    line: int
    kind: str
    text: str


def comments(source: str, markers: tuple[str, ...]) -> Iterator[Word]:
    """The blocks of comment lines that begin with one of the markers."""

    def marker_of(numbered: tuple[int, str]) -> str:
        return numbered[1].strip().partition(" ")[0]

    numbered_lines = enumerate(source.splitlines(), start=1)
    for marker, block in groupby(numbered_lines, marker_of):
        if marker in markers:
            lines, texts = zip(*block, strict=True)
            text = "\n".join(text.strip().removeprefix(marker).strip() for text in texts)
            yield Word(lines[0], "doc", text)


def of_python(source: str) -> Iterator[Word]:
    """The questions and doc comments of a file in Python."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name, returns=ast.expr() as returns):
                if QUESTION.match(name):
                    yield Word(node.lineno, "question", ast.unparse(returns))
            case ast.Expr(value=ast.Constant(value=str(doc))):
                yield Word(node.lineno, "doc", doc.strip())
    yield from comments(source, ("#:",))


RUST_QUESTION = re.compile(r"\bfn\s+_*(?:is|has|are)_\w+[^{;]*?(?:->\s*([^{;]+?))?\s*[{;]")
#: A string, a character, or a comment.
RUST_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'|//[^\n]*', re.DOTALL)


def of_rust(source: str) -> Iterator[Word]:
    """The questions and doc comments of a file in Rust, as regular expressions see them."""
    # Without strings and comments, but in the same lines.
    code = RUST_TEXT.sub(lambda text: "\n" * text[0].count("\n"), source)
    for match in RUST_QUESTION.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        yield Word(line, "question", match[1] or "None")
    yield from comments(source, ("///", "//!"))


READERS = {".py": of_python, ".pyi": of_python, ".rs": of_rust}


def is_refused(word: Word) -> bool:
    if word.kind == "question":
        return not ANSWER.search(word.text)
    return bool(REPEATED.search(word.text) or VAGUE.search(word.text))


def sources(paths: Iterable[str]) -> list[Path]:
    """Our files below some paths."""
    listing = output_of("git", "ls-files", "-co", "--exclude-standard", "--", *paths)
    files = (ROOT / name for name in sorted(listing.split()))
    return [file for file in files if file.suffix in READERS and file.exists()]


def offenders(paths: Iterable[str]) -> Iterator[str]:
    """The words that break a rule, with the file and the line."""
    for path in sources(paths):
        name = path.relative_to(ROOT)
        for word in sorted(READERS[path.suffix](path.read_text())):
            if is_refused(word):
                text = word.text.partition("\n")[0]
                yield f"{name}:{word.line}: {word.kind} {text!r}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=["."])
    lines = list(offenders(parser.parse_args().paths))
    print("\n".join(lines), end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
