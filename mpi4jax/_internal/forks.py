"""Forked processes, which inherit the objects of this process, but can't use MPI."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable


def at_exit(function: Callable[[], object]) -> None:
    """Call a function at the exit of this process, but not of a process forked from it."""
    atexit.register(function)
    os.register_at_fork(after_in_child=functools.partial(atexit.unregister, function))
