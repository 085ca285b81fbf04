"""`mpi4jax.notoken`, under its name in mpi4jax 0.4 and 0.5."""

import importlib as _importlib
from types import ModuleType as _ModuleType

from ...notoken import *
from ...notoken import __all__ as __all__
from . import tree as tree


def __getattr__(name: str) -> _ModuleType:
    if name == "collective_ops":
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
