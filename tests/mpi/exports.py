"""JAX's module `jax.export`, for tests."""

from __future__ import annotations

import importlib
from types import ModuleType

import jax
import pytest


def jax_export() -> ModuleType:
    """The module, or a skipped test with a JAX whose own programs it can't call."""
    if jax.__version_info__ < (0, 7):
        pytest.skip("JAX 0.6.0 makes no valid call of an exported program with effects")
    return importlib.import_module("jax.export")
