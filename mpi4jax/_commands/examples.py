"""The programs of the gallery, which wheels contain as files."""

from __future__ import annotations

import argparse
import ast
import importlib
import runpy
import sys
from pathlib import Path

import mpi4jax
from mpi4jax import _launcher

PACKAGE = Path(mpi4jax.__file__).resolve().parent
#: The folder of the examples: in the package in a wheel, beside it in a checkout.
FOLDERS = PACKAGE / "examples", PACKAGE.parent / "examples"


def files() -> dict[str, Path]:
    """The examples, by their names."""
    folder = next((f for f in FOLDERS if f.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.py"))} if folder else {}


def purpose(path: Path) -> str:
    """The first line of an example's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]


def run(arguments: argparse.Namespace) -> int:
    examples = files()
    if not examples:
        return _launcher.refuse(f"no examples in {FOLDERS[0]}")
    if arguments.name is None:
        if _launcher.is_first():
            print(listing(examples))
        return 0
    if arguments.name not in examples:
        names = ", ".join(examples)
        return _launcher.refuse(f"no example {arguments.name!r}, expected one of: {names}")
    path = str(examples[arguments.name])
    sys.argv = [path, *arguments.arguments]
    # A command starts without the public names of mpi4jax, which the examples use.
    importlib.reload(mpi4jax)
    runpy.run_path(path, run_name="__main__")
    return 0


def listing(examples: dict[str, Path]) -> str:
    """Names and purposes, how to run one, and the folder with the programs."""
    width = max(map(len, examples))
    (folder,) = {path.parent for path in examples.values()}
    lines = [f"{name:{width}}  {purpose(path)}" for name, path in examples.items()]
    return "\n".join(
        [
            *lines,
            "",
            "run one:        mpiexec -n 2 python -m mpi4jax examples NAME [ARGUMENTS]",
            "its arguments:  python -m mpi4jax examples NAME --help",
            f"the programs:   {folder}",
        ]
    )
