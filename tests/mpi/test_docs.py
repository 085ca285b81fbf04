"""The examples of the documentation, each page or section one program. They check
themselves.
"""

import re
from pathlib import Path

import jax
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks_of(text):
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(page, blocks):
    """Gives the names that the examples define."""
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("autodiff.md", 5),
        ("halo.md", 20),
        ("overlap.md", 4),
        ("trees.md", 3),
        ("tutorial.md", 6),
    ],
)
def test_examples(page, least):
    blocks = blocks_of((DOCS / page).read_text())
    assert sum(block.count("assert") for block in blocks) >= least
    jax.block_until_ready(run(page, blocks)["gradient"])


@pytest.mark.parametrize(
    ("section", "least", "result"),
    [("Neighbors", 4, "received"), ("Exported programs", 2, "result")],
)
def test_examples_of_a_section(section, least, result):
    """The imports at the beginning of the page, and the code of the section."""
    if section == "Exported programs":  # JAX 0.6.0 needs absl-py for this
        pytest.importorskip("jax.export", exc_type=ImportError)
    first, *sections = (DOCS / "usage.md").read_text().split("\n## ")
    (text,) = (text for text in sections if text.startswith(f"{section}\n"))
    assert text.count("assert") >= least
    names = run("usage.md", blocks_of(first) + blocks_of(text))
    jax.block_until_ready(names[result])
