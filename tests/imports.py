"""Imports between the files and folders of the package, and between the core's modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

#: For each module or folder the others that it imports.
Graph = Mapping[str, set[str]]


def _imports_of(path: Path, package: str) -> Iterator[tuple[str, str]]:
    """The modules of ours that a file imports, also in functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                yield base, f"{base}.{alias.name}"


def between_modules(root: Path) -> Graph:
    """Imports between the modules of the package."""
    files = {}
    folders = [root / "mpi4jax" / name for name in ("_internal", "_commands", "_testing")]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for module, path in files.items():
        is_package = path.name == "__init__.py"
        package = module if is_package else module.rpartition(".")[0]
        # `from . import x` is about the module x, and `from .x import y` as well.
        imported = {
            name if name in files else base for base, name in _imports_of(path, package)
        }
        graph[module] = {name for name in imported if name in files and name != module}
    return graph


def between_folders(modules: Graph) -> Graph:
    """Imports between the folders and files right in `_internal`."""

    def folder_of(module: str) -> str:
        return ".".join(module.split(".")[:3])

    folders: dict[str, set[str]] = {}
    for module, imported in modules.items():
        if module != "mpi4jax._internal":  # its imports start everything
            others = {folder_of(name) for name in imported} - {folder_of(module)}
            folders.setdefault(folder_of(module), set()).update(others)
    return folders


def in_core(root: Path) -> Graph:
    """Imports between the modules of the core that `lib.rs` lists."""
    sources = root / "rust" / "src"
    listed = re.findall(
        r"^//! - \[?`(\w+)`", (sources / "lib.rs").read_text(), re.MULTILINE
    )
    graph = {}
    for module in listed:
        files = [*(sources / module).rglob("*.rs"), *sources.glob(f"{module}.rs")]
        text = "\n".join(path.read_text() for path in files)
        named = {*re.findall(r"\bcrate::(\w+)", text)}
        graph[module] = (named & {*listed}) - {module}
    return graph


def direct(graph: Graph) -> Graph:
    """The imports that do not follow from others."""

    def reached(name: str) -> set[str]:
        return graph[name].union(*map(reached, graph[name]))

    return {
        name: imported - {other for each in imported for other in reached(each)}
        for name, imported in graph.items()
    }
