"""The installed version, and the API that it selects."""

from __future__ import annotations

import re
from importlib.metadata import version


def versiontuple(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, without any suffix."""
    numbers = re.match(r"[0-9.]*", version)
    assert numbers is not None
    return tuple(int(n) for n in numbers.group().rstrip(".").split("."))[:3]


#: One source is released as two versions, which differ only in their top-level API: up to
#: 0.7 with tokens, from 0.8 on without.
VERSION = version("mpi4jax")
HAS_TOKENS = versiontuple(VERSION) < (0, 8)
