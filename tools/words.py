"""Checks the words of our sources: names of locals, names of questions, doc comments.

    python tools/words.py [PATH ...]          lists what breaks a rule, by file and line
    python tools/words.py --count [PATH ...]  prints the share of vague names by folder

The rules, for Python and Rust:

- A local is named for what it holds, with none of the words in `VAGUE`.
- A function named `is_`, `has_` or `are_` answers with a bool.
- A doc comment does not begin with "The same": it stands without the one above it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from environments import ROOT, output_of

#: Words that say nothing about the value of a local.
VAGUE = frozenset(
    "came found given kept number one place them these thing things those what".split()
)
QUESTION = re.compile(r"_*(is|has|are)_")
ANSWER = re.compile(r"(?i:bool)|TypeGuard|Array|c_int")
#: How a doc comment does not begin, and how few of them should.
REFUSED, DISCOURAGED = re.compile(r"The same\b"), re.compile(r"What\b")


class Word(NamedTuple):
    """A `local`, the return type of a `question`, or the text of a `doc` comment."""

    line: int
    kind: str
    text: str
    #: Whether the local is assigned, and not a parameter.
    is_assigned: bool = False


def of_python(source: str) -> Iterator[Word]:
    """The words of a file in Python. Fields of classes are no locals."""
    nodes = list(ast.walk(ast.parse(source)))
    bodies = [node.body for node in nodes if isinstance(node, ast.ClassDef)]
    fields = {
        statement.target
        for body in bodies
        for statement in body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in nodes:
        match node:
            case ast.Name() if node in fields:
                pass
            case ast.Name(id=name, ctx=ast.Store()):
                yield Word(node.lineno, "local", name, is_assigned=True)
            case ast.arg(arg=name):
                yield Word(node.lineno, "local", name)
            case ast.FunctionDef(name=name, returns=ast.expr() as returns):
                if QUESTION.match(name):
                    yield Word(node.lineno, "question", ast.unparse(returns))
            case ast.Expr(value=ast.Constant(value=str(doc))):
                yield Word(node.lineno, "doc", doc)
    for line, text in enumerate(source.splitlines(), start=1):
        if comment := re.match(r"\s*#: (.*)", text):
            yield Word(line, "doc", comment[1])


#: Where Rust binds names: `let`, `if let`, `for`, the arguments of closures and functions.
BINDINGS = re.compile(
    r"\blet\s+(?P<let>[^=;]*?)\s*(?::[^:=][^=;]*)?[=;]"
    r"|\bfor\s+(?P<for>[^={;]*?)\s+in\b"
    r"|(?<![|\w)\]] )(?<!\|)\|(?P<closure>[^|={;.]+)\|(?!\|)"
    r"|[(,]\s*(?:mut\s+)?(?P<parameter>[a-z_]\w*)\s*:(?!:)"
)
RUST_QUESTION = re.compile(r"\bfn\s+_*(?:is|has|are)_\w+[^{;]*?(?:->\s*([^{;]+?))?\s*[{;]")
#: A string, a character, or a comment.
RUST_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'|//[^\n]*', re.DOTALL)
#: Names that patterns mention without binding them.
NO_BINDINGS = frozenset("mut ref box self dyn as usize".split())


def of_rust(source: str) -> Iterator[Word]:
    """The words of a file in Rust, as far as regular expressions see them."""
    # Without strings and comments, but in the same lines.
    code = RUST_TEXT.sub(lambda text: "\n" * text[0].count("\n"), source)

    def line_of(start: int) -> int:
        return code.count("\n", 0, start) + 1

    for match in BINDINGS.finditer(code):
        is_assigned = match.lastgroup in ("let", "for")
        pattern = match[match.lastgroup or 0]
        if match.lastgroup == "closure":  # without the types
            pattern = re.sub(r":(?!:)[^,]*", "", pattern)
        for name in re.findall(r"(?<![\w:.])[a-z_]\w*(?!\w|::|!|\()", pattern):
            if name not in NO_BINDINGS:
                line = line_of(match.start(match.lastgroup or 0))
                yield Word(line, "local", name, is_assigned)
    for match in RUST_QUESTION.finditer(code):
        yield Word(line_of(match.start()), "question", match[1] or "None")
    previous = ""
    for line, text in enumerate(source.splitlines(), start=1):
        marker, _, doc = text.strip().partition(" ")
        if marker in ("///", "//!") and marker != previous:
            yield Word(line, "doc", doc)
        previous = marker


READERS = {".py": of_python, ".pyi": of_python, ".rs": of_rust}


def words_of(path: Path) -> list[Word]:
    return list(READERS[path.suffix](path.read_text()))


def is_refused(word: Word) -> bool:
    match word.kind:
        case "local":
            return word.text in VAGUE
        case "question":
            return not ANSWER.search(word.text)
        case _:
            return REFUSED.match(word.text) is not None


def sources(paths: Iterable[str]) -> list[Path]:
    """Our files below some paths."""
    listing = output_of("git", "ls-files", "-co", "--exclude-standard", "--", *paths)
    files = (ROOT / name for name in sorted(listing.split()))
    return [file for file in files if file.suffix in READERS and file.exists()]


def offenders(paths: Iterable[str]) -> Iterator[str]:
    """The words that break a rule, with the file and the line."""
    for path in sources(paths):
        for word in sorted(filter(is_refused, words_of(path))):
            text = word.text.partition("\n")[0]
            yield f"{path.relative_to(ROOT)}:{word.line}: {word.kind} {text!r}"


def count_of(path: Path) -> Counter[str]:
    """The assigned locals of a file, the vague ones, and the doc comments to reword."""
    counter: Counter[str] = Counter()
    for word in words_of(path):
        counter["assigned"] += word.is_assigned
        counter["vague"] += word.is_assigned and word.text in VAGUE
        counter["same"] += word.kind == "doc" and bool(REFUSED.match(word.text))
        counter["what"] += word.kind == "doc" and bool(DISCOURAGED.match(word.text))
    return counter


def table(paths: Iterable[str]) -> Iterator[str]:
    """The counts of each folder, and of all of them."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sources(paths):
        folder = "/".join(path.relative_to(ROOT).parts[:-1][:3])
        counts[folder] += count_of(path)
    counts = {**dict(sorted(counts.items())), "all": sum(counts.values(), Counter())}
    yield f"{'':36} {'vague':>6} {'of':>6} {'share':>6} {'The same':>9} {'What':>5}"
    for label, c in counts.items():
        share = c["vague"] / max(c["assigned"], 1)
        vague = f"{c['vague']:6} {c['assigned']:6} {share:6.1%}"
        yield f"{label:36} {vague} {c['same']:9} {c['what']:5}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=["."])
    parser.add_argument("--count", action="store_true")
    arguments = parser.parse_args()
    if arguments.count:
        print(*table(arguments.paths), sep="\n")
        return 0
    lines = list(offenders(arguments.paths))
    print("\n".join(lines), end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
