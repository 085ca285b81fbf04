"""The names of JAX that are not public, each of which a new JAX may have lost."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import jax
import pytest

FILE = Path(__file__).parents[2] / "mpi4jax" / "_internal" / "xla" / "jax_compat.py"


def names():
    """The imports from JAX, and the attributes of modules among them, by module."""
    tree = ast.parse(FILE.read_text())
    imports = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax")
        for alias in node.names
    }
    attributes = {
        (".".join(imports[node.value.id]), node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in imports
    }
    return sorted({*imports.values(), *attributes})


@pytest.mark.parametrize(("module", "name"), names())
def test_jax_has(module, name):
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        package, _, last = module.rpartition(".")
        owner = getattr(importlib.import_module(package), last)
    if not hasattr(owner, name):
        assert isinstance(owner, ModuleType)
        importlib.import_module(f"{module}.{name}")


def files():
    """The files of JAX's by which a waiting thread is known."""
    tree = ast.parse(FILE.read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return sorted(word for word in words if isinstance(word, str) and word.endswith(".py"))


@pytest.mark.parametrize("file", files())
def test_jax_has_the_file(file):
    assert Path(jax.__file__).with_name("_src").joinpath(file).is_file()
