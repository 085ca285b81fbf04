"""The Python blocks of README.md and all pages of the documentation, which check
themselves. `tests/pages.py` says which of them are a program.
"""

import importlib
from collections import Counter

import jax
import pages
import pytest

#: Pages whose examples compare what they compute with what is expected, at least so often.
ASSERTIONS = {
    "autodiff.md": 3,
    "extend.md": 2,
    "halo.md": 20,
    "linalg.md": 15,
    "overlap.md": 3,
    "trees.md": 3,
    "tutorial.md": 7,
    "unstructured.md": 20,
    "usage.md": 13,
}


def has(module):
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


@pytest.fixture
def shared_folder(tmp_path, monkeypatch, comm):
    """An empty folder of all ranks, the current one."""
    monkeypatch.chdir(comm.bcast(tmp_path))


@pytest.fixture
def _own_types():
    """Keeps a program's choice of 64-bit types from the ones after it."""
    enabled = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", enabled)


@pytest.mark.parametrize("program", pages.programs(own_process=False), ids=lambda p: p.name)
@pytest.mark.usefixtures("_own_types")
def test_program(program, shared_folder, size):
    if program.ranks not in (None, size):
        pytest.skip(f"is for {program.ranks} ranks")
    names: dict[str, object] = {"__name__": program.name}
    for block in program.blocks:
        if has(block.words.get("needs", "jax")):
            exec(block.compiled(), names)
    jax.block_until_ready([x for x in names.values() if isinstance(x, jax.Array)])


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.name)
def test_fragments_are_valid_python(path):
    for block in pages.blocks_of(path):
        block.compiled()


def test_blocks_that_other_tests_run():
    for path in pages.pages():
        for block in pages.blocks_of(path):
            if "run-by" in block.words:
                assert path.name in (pages.ROOT / block.words["run-by"]).read_text()


def test_examples_check_themselves():
    assertions = Counter()
    for path in pages.pages():
        for block in pages.blocks_of(path):
            assertions[path.name] += block.text.count("assert ")
    assert not {page: n for page, n in ASSERTIONS.items() if assertions[page] < n}
