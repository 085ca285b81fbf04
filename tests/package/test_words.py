"""tools/words.py reads the names and doc comments of both languages."""

import sys

import pytest


@pytest.fixture
def words(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "tools")
    import words

    yield words
    del sys.modules["words"]


def refused(words, read, source):
    lines = sorted(filter(words.is_refused, read(source)))
    return [(word.line, word.kind, word.text.split()[0]) for word in lines]


PYTHON = '''
def is_marked(given, **kwargs) -> None:
    """The same with a mark."""
    found, place = given
    for one in found:
        _ = [kept for kept in one]


def is_read(x) -> bool:
    """What is read; found in `those`."""
    return x.found(came=1)
'''

RUST = """
/// The same,
/// The same again.
fn has_begun(&mut self, found: usize) {
    let (mut place, shape): (usize, Given) = read("let found = 1;");
    for (index, one) in rows.iter().enumerate() {}
    if let Some(came) = last && left || kept || given {}
    rows.map(|those, row: &Row| row.found + 1);
}
/// Reads the same; found.
fn is_read(&self) -> Option<bool> {
    found::kept(self.place, Row { number: 1 })
}
"""


def test_python(words):
    assert refused(words, words.of_python, PYTHON) == [
        (2, "local", "given"),
        (2, "question", "None"),
        (3, "doc", "The"),
        (4, "local", "found"),
        (4, "local", "place"),
        (5, "local", "one"),
        (6, "local", "kept"),
    ]


def test_rust(words):
    assert refused(words, words.of_rust, RUST) == [
        (2, "doc", "The"),
        (4, "local", "found"),
        (4, "question", "None"),
        (5, "local", "place"),
        (6, "local", "one"),
        (7, "local", "came"),
        (8, "local", "those"),
    ]


def test_beginnings_are_counted(words, tmp_path):
    (tmp_path / "read.py").write_text(PYTHON)
    (tmp_path / "read.rs").write_text(RUST)
    counts = [words.count_of(tmp_path / f"read.{suffix}") for suffix in ("py", "rs")]
    assert [(c["vague"], c["assigned"], c["same"], c["what"]) for c in counts] == [
        (4, 5, 1, 1),
        (3, 5, 1, 0),
    ]
