"""The tables of the documentation come from one run of `make bench`."""

import functools
import importlib
import json

import pytest


@pytest.fixture
def report(root, monkeypatch):
    """The program that writes the tables."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module("report")


def test_tables(report):
    results = report.Results(json.loads((report.FOLDER / "results.json").read_text()))
    for page, text in report.pages(results).items():
        assert page.read_text() == text, f"{page.name}: run benchmarks/report.py --docs"


def test_every_table_is_on_a_page(report):
    text = "".join(page.read_text() for page in report.PAGES)
    names = {*report.EXCERPTS, "machine"}
    assert {name for name in names if f"<!-- figures: {name} -->" in text} == names
    # Figures within sentences would have to be kept true by hand.
    assert " µs" not in text.replace("µs,", "")


def test_least_evaluations(report):
    """The formula of Griewank and Walther gives what a search for the best plan finds."""

    @functools.cache
    def advances(steps, states):
        """Those to the last step, and to those before it, in the best plan."""
        if steps == 1:
            return 0
        if states == 1:
            return steps * (steps - 1) // 2
        return min(
            first + advances(steps - first, states - 1) + advances(first, states)
            for first in range(1, steps)
        )

    for steps in range(1, 60):
        for states in range(1, 12):
            least = report.evaluations(steps, states)
            assert least == steps + advances(steps, states), (steps, states)
