"""Draws the folders of the package and the modules of the core, with their imports.

    python tools/structure.py [--check]

writes docs/pictures/package.svg and core.svg from the sources. --check fails if they are
not up to date.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Mapping
from html import escape

from environments import ROOT

sys.path.append(str(ROOT / "tests"))

import imports

FOLDER = ROOT / "docs" / "pictures"

#: Sizes of a box, of the place where an arrow passes a row, and of what is between them.
WIDTH, HEIGHT, BEND, GAP, ROW_GAP, MARGIN = 226, 70, 10, 14, 40, 12
STYLE = """
rect { fill: #f4f6f8; stroke: #5b6b7a }
path { fill: none; stroke: #5b6b7a; stroke-width: 1.2 }
text { font: 12px sans-serif; fill: #1d2730 }
.name { font-weight: bold; font-size: 14px }
"""


def package_folders() -> tuple[imports.Graph, dict[str, str]]:
    """Imports between the folders of the package, and what each is about."""
    folder = ROOT / "mpi4jax" / "_internal"
    graph = imports.between_folders(imports.between_modules(ROOT))
    named = {}
    for name, imported in graph.items():
        if name.startswith("mpi4jax._internal."):
            named[name.split(".")[2]] = {other.split(".")[2] for other in imported}
    texts = {}
    for name in named:
        path = folder / name / "__init__.py"
        path = path if path.exists() else folder / f"{name}.py"
        texts[name] = ast.get_docstring(ast.parse(path.read_text())) or ""
    return named, texts


def core_modules() -> tuple[imports.Graph, dict[str, str]]:
    """Imports between the modules of the core, and what each is about."""
    listed = (ROOT / "rust" / "src" / "lib.rs").read_text()
    texts = re.findall(r"^//! - \[?`(\w+)`\]?: (.*)$", listed, re.MULTILINE)
    return imports.in_core(ROOT), dict(texts)


def rows_of(graph: imports.Graph) -> list[dict[str, set[str]]]:
    """What stands in each row, from below, with what it leads to in the row below.

    An arrow to a row further down passes each row between at a place of its own, whose key
    has a ">".
    """
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            heights[name] = 1 + max(map(height, graph[name]), default=-1)
        return heights[name]

    rows: list[dict[str, set[str]]] = [{} for _ in range(1 + max(map(height, graph)))]
    for name in sorted(graph):
        below = rows[height(name)].setdefault(name, set())
        for other in sorted(graph[name]):
            end = below
            for row in range(height(name) - 1, height(other), -1):
                end.add(gap := f"{name} > {other}, {row}")
                end = rows[row].setdefault(gap, set())
            end.add(other)
    return rows


def centers_of(rows: list[dict[str, set[str]]]) -> tuple[dict[str, tuple[float, int]], int]:
    """The middle of each place in a row, and the width of the picture."""
    centers: dict[str, tuple[float, int]] = {}
    half_width = 0.0
    for number, row in enumerate(rows):
        # Each stands above what it leads to.
        wanted = {
            name: sum(centers[other][0] for other in below) / max(len(below), 1)
            for name, below in row.items()
        }
        widths = {name: BEND if ">" in name else WIDTH for name in row}
        total = sum(widths.values()) + GAP * (len(row) - 1)
        half_width, left = max(half_width, total / 2), -total / 2
        for name in sorted(row, key=lambda name: (wanted[name], name)):
            width = widths[name]
            centers[name] = left + width / 2, (len(rows) - 1 - number) * (HEIGHT + ROW_GAP)
            left += width + GAP
    shift = half_width + MARGIN
    shifted = {name: (x + shift, y + MARGIN) for name, (x, y) in centers.items()}
    return shifted, round(2 * shift)


def picture(graph: imports.Graph, texts: Mapping[str, str]) -> str:
    """The picture as SVG: an arrow for each import that does not follow from others."""
    rows = rows_of(imports.direct(graph))
    centers, width = centers_of(rows)
    height = len(rows) * (HEIGHT + ROW_GAP) - ROW_GAP + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8"/></marker>',
        f'<rect width="{width}" height="{height}" style="fill: white; stroke: none"/>',
    ]
    for name, below in (entry for row in rows for entry in row.items()):
        x, y = centers[name]
        if ">" in name:
            lines.append(f'<path d="M{x:g},{y:g} V{y + HEIGHT:g}"/>')
        for other in sorted(below):
            end_x, end_y = centers[other]
            bend = f"{x:g},{y + HEIGHT + ROW_GAP / 2:g} {end_x:g},{end_y - ROW_GAP / 2:g}"
            arrow = "" if ">" in other else ' marker-end="url(#arrow)"'
            curve = f"M{x:g},{y + HEIGHT:g} C{bend} {end_x:g},{end_y:g}"
            lines.append(f'<path d="{curve}"{arrow}/>')
        if ">" not in name:
            lines += box(name, texts[name], x - WIDTH / 2, y)
    return "\n".join([*lines, "</svg>", ""])


def box(name: str, text: str, x: float, y: float) -> list[str]:
    """A box with a name and the first line of a text."""
    sentence = re.sub(r"[`\[\]]", "", text.partition("\n")[0]).rstrip(".")
    sentence = sentence[:1].upper() + sentence[1:]
    lines = [
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text class="name" x="{x + 8:g}" y="{y + 18:g}">{name}</text>',
    ]
    for number, line in enumerate(textwrap.wrap(sentence, 32)):
        baseline = y + 34 + 14 * number
        lines.append(f'<text x="{x + 8:g}" y="{baseline:g}">{escape(line)}</text>')
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    for name, (graph, texts) in {
        "package": package_folders(),
        "core": core_modules(),
    }.items():
        path, text = FOLDER / f"{name}.svg", picture(graph, texts)
        if is_check and (not path.exists() or path.read_text() != text):
            sys.exit(f"{path.relative_to(ROOT)} is not up to date: run make format")
        path.write_text(text)


if __name__ == "__main__":
    main()
