"""The tables of the documentation are those of one run of `make bench`."""

import json
import sys


def test_tables(root, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(root / "benchmarks")])
    import report

    results = report.Results(json.loads((report.FOLDER / "results.json").read_text()))
    for page, text in report.pages(results).items():
        assert page.read_text() == text, f"{page.name}: run benchmarks/report.py --docs"


def test_every_table_is_on_a_page(root, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(root / "benchmarks")])
    import report

    text = "".join(page.read_text() for page in report.PAGES)
    names = {*report.EXCERPTS, "machine"}
    assert {name for name in names if f"<!-- figures: {name} -->" in text} == names
    # Figures within sentences would have to be kept true by hand.
    assert " µs" not in text.replace("µs,", "")
