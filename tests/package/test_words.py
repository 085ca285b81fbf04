"""tools/words.py reads the questions and doc comments of both languages."""

import sys

import pytest


@pytest.fixture
def words(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "tools")
    import words

    yield words
    del sys.modules["words"]


def refused(words, read, source):
    lines = sorted(word for word in read(source) if words.is_refused(word))
    return [(word.line, word.kind, word.text.split()[0]) for word in lines]


# Not as a comment that `words` would find here.
PYTHON = '''
def is_marked(x) -> None:
    """The same with a mark."""
    #: has MPI wait.
    return x


def is_read(x) -> bool:
    """The sum of the same; has an end.

    As so
    many others.
    """
    #: Sum of
    #: The same
    return x.read("so many")  # so many
'''.replace("has MPI", "Has MPI")

RUST = """
/// The same,
/// The same again.
fn has_begun(&mut self, so_many: usize) {
    //! Has
    let read = "fn is_read() {}"; // so many
}
/// Reads the same; Have,
/// for so
/// many.
fn is_read(&self) -> Option<bool> {
    read(self.size)
}
"""


def test_python(words):
    same = [(2, "question", "None"), (3, "doc", "The")]
    vague = [(4, "doc", "Has"), (9, "doc", "The")]
    assert refused(words, words.of_python, PYTHON) == same + vague


def test_rust(words):
    same = [(2, "doc", "The"), (4, "question", "None")]
    vague = [(5, "doc", "Has"), (8, "doc", "Reads")]
    assert refused(words, words.of_rust, RUST) == same + vague
