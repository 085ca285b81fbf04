"""The examples of the documentation, each page one program. They check themselves."""

import re
from pathlib import Path

import jax
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("page", "least"), [("autodiff.md", 5), ("trees.md", 3)])
def test_examples(page, least):
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    assert sum(block.count("assert") for block in blocks) >= least
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    jax.block_until_ready(names["gradient"])
