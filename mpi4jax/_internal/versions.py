"""The installed version, and what follows from it."""

from __future__ import annotations

import re
from importlib.metadata import version


def versiontuple(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, anything behind the numbers left out."""
    numbers = re.match(r"[0-9.]*", version)
    assert numbers is not None
    return tuple(int(n) for n in numbers.group().rstrip(".").split("."))[:3]


#: One source is released as two versions, which differ in nothing but the API that they
#: have at the top level: up to 0.7 it takes tokens, from 0.8 on it has none.
VERSION = version("mpi4jax")
HAS_TOKENS = versiontuple(VERSION) < (0, 8)
