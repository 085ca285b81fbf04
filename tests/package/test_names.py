"""Every name in every module of the original's releases, but for what is listed."""

import ast
import fnmatch
import importlib
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

RELEASES = ("0.3.15.post2", "0.5.4", "0.7.2", "0.9.1.post2")


class LeftOut(NamedTuple):
    module: str
    names: str
    reason: str

    def covers(self, module, name):
        return fnmatch.fnmatch(module, self.module) and fnmatch.fnmatch(name, self.names)


def left_out():
    lines = Path(__file__).with_name("names_left_out.txt").read_text().splitlines()
    return [LeftOut(*line.split(None, 2)) for line in lines if not line.startswith("#")]


def targets(node):
    if isinstance(node, ast.Name):
        yield node.id
    for element in getattr(node, "elts", ()):
        yield from targets(element)


def names(body):
    """The classes, functions and variables that statements define."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from targets(target)
        elif isinstance(node, ast.AnnAssign):
            yield from targets(node.target)
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from names(getattr(node, field, ()))


def names_of(archive):
    """The names in an archive, by module. Modules without one have an empty list."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if path.suffix == ".py" and path.parts[1] == "mpi4jax":
                parts = path.with_suffix("").parts[1:]
                module = ".".join(parts).removesuffix(".__init__")
                text = tar.extractfile(member).read()
                yield module, sorted(set(names(ast.parse(text).body)))


@pytest.mark.parametrize("release", RELEASES)
def test_names(release, archives):
    exceptions, missing = left_out(), []
    count = 0
    for module, wanted in names_of(archives / f"mpi4jax-{release}.tar.gz"):
        if all(any(e.covers(module, n) for e in exceptions) for n in wanted) and wanted:
            continue
        ours = importlib.import_module(module)
        for name in wanted:
            count += 1
            excused = any(e.covers(module, name) for e in exceptions)
            if not excused and not hasattr(ours, name):
                missing.append(f"{module}.{name}")
    assert missing == []
    assert count > 50


def test_no_exception_is_left_over(archives):
    """Each is about a name that the original has and we have not."""
    wanted = {
        (module, name)
        for release in RELEASES
        for module, names_there in names_of(archives / f"mpi4jax-{release}.tar.gz")
        for name in names_there
    }
    for exception in left_out():
        covered = {pair for pair in wanted if exception.covers(*pair)}
        assert covered, exception
        assert exception.reason
        for module, name in covered:
            try:
                ours = importlib.import_module(module)
            except ModuleNotFoundError:
                continue
            assert not hasattr(ours, name) or name == "flush", exception


def test_nothing_of_ours_imports_them(root):
    """The folder is for others: `import mpi4jax` does not load it."""
    code = (
        "import sys, mpi4jax; "
        "assert not [name for name in sys.modules if name.startswith('mpi4jax._src')]; "
        "print(mpi4jax._src.utils.ordered_effect)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True
    )
    assert done.stdout == "MPI\n", done.stderr
    for path in (root / "mpi4jax").rglob("*.py"):
        if "_src" in path.parts or path.parent.name == "collective_ops":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                named = [node.module or "", *(alias.name for alias in node.names)]
                is_jax = (node.module or "").startswith("jax.")
                assert is_jax or "_src" not in ".".join(named).split("."), path
            elif isinstance(node, ast.Import):
                assert not any("mpi4jax._src" in alias.name for alias in node.names), path
