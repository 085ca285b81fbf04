"""A part of the tests, where another run has all of them: a plugin of pytest's.

`TEST_SAMPLE=1/4` runs every fourth test of each function that has parameters, from the
second one on, and all functions that have none. Of tests that start processes of their own,
which takes seconds each, it runs every fourth one of each file. `TEST_SHARE=0/2` then runs
every second one of each file.
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
    """The seeds of random tests: `count`, or the range in `TEST_SEEDS`, as in 100:600."""
    return range(*map(int, os.environ.get("TEST_SEEDS", f"0:{count}").split(":")))


def part_of_each(items, end, part):
    """Some of the tests of each function, whose names go to "[", or of each file, "::"."""
    groups = itertools.groupby(items, lambda item: item.nodeid.partition(end)[0])
    return [item for _, group in groups for item in part_of(list(group), part)]


def pytest_collection_modifyitems(config, items):
    starts_processes = not config.pluginmanager.has_plugin("ranks")
    sample = part_of_each(items, "::" if starts_processes else "[", SAMPLE)
    selected = part_of_each(sample, "::", SHARE)
    chosen = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = selected
