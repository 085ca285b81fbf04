"""A part of the tests, where another run has all of them: a plugin of pytest's.

`TEST_SAMPLE=1/4` runs every fourth test of each function that has parameters, from the
second one on, and all functions that have none. `TEST_SHARE=0/2` runs half of what is left,
in the same way.
"""

from __future__ import annotations

import itertools
import os

SAMPLE = os.environ.get("TEST_SAMPLE", "0/1")
SHARE = os.environ.get("TEST_SHARE", "0/1")


def is_whole():
    """Whether this run has all of the tests."""
    return SAMPLE.endswith("/1") and SHARE.endswith("/1")


def part_of(members, part):
    """Some of the members: `1/4` is every fourth one. One is always left."""
    first, _, step = part.partition("/")
    start = int(first) % min(int(step), len(members))
    return members[start :: int(step)]


def seeds(count):
    """The seeds of random tests: so many, or those of `TEST_SEEDS`, as in 100:600."""
    return range(*map(int, os.environ.get("TEST_SEEDS", f"0:{count}").split(":")))


def pytest_collection_modifyitems(config, items):
    selected, left_out = [], []
    for _, group in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        members = list(group)
        chosen = part_of(part_of(members, SAMPLE), SHARE)
        selected += chosen
        left_out += [item for item in members if item not in chosen]
    items[:] = selected
    config.hook.pytest_deselected(items=left_out)
