"""A part of the tests, where another run has all of them: a plugin of pytest's.

`TEST_SAMPLE=1/4` runs every fourth test of each function that has parameters, from the
second one on, and all functions that have none.
"""

from __future__ import annotations

import itertools
import os

SAMPLE = os.environ.get("TEST_SAMPLE", "0/1")


def is_whole():
    """Whether this run has all of the tests."""
    return SAMPLE.endswith("/1")


def pytest_collection_modifyitems(config, items):
    first, _, step = SAMPLE.partition("/")
    selected, left_out = [], []
    for _, group in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        members = list(group)
        start = int(first) % min(int(step), len(members))
        chosen = members[start :: int(step)]
        selected += chosen
        left_out += [item for item in members if item not in chosen]
    items[:] = selected
    config.hook.pytest_deselected(items=left_out)
