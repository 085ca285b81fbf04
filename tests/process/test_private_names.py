"""A JAX that has lost one of the names that are not public.

Each is taken away, one by one, as are the variables of JAX's functions that have the
programs, and the events that announce these. Everything works then, or what the table says.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import jax
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mpi4jax" / "_internal"


def load_table():
    """The module with the table, without importing mpi4jax and initialising MPI."""
    package = types.ModuleType("sources")
    package.__path__ = [str(PACKAGE)]
    with mock.patch.dict(sys.modules, sources=package):
        return importlib.import_module("sources.xla.private_names")


table = load_table()
ENTRIES = {candidates: entry for entry in table.NAMES for candidates in entry.paths}
#: Those for which this JAX has a use.
CURRENT = {
    candidates: entry
    for candidates, entry in ENTRIES.items()
    if table.versiontuple(entry.since) <= table.versiontuple(jax.__version__)
}
LOWERED, COMPILED = table.LOWERED, table.COMPILED

#: What does not work without a name.
BROKEN = {
    "jax._src.effects:control_flow_allowed_effects": "loop",
    "jax._src.effects:custom_derivatives_allowed_effects": "custom_jvp",
    "jax._src.effects:remat_allowed_effects": "checkpoint",
    "jax._src.state.types:AbstractRef": "overlap",
}


LOOKUPS = ("essential", "optional", "require")


class AtRunTime(ast.NodeTransformer):
    """Leaves out what only type checkers read."""

    def visit_If(self, node):
        if ast.unparse(node.test) != "TYPE_CHECKING":
            return self.generic_visit(node)
        return list(map(self.visit, node.orelse))


def used_names():
    """The names that the sources use at run time, as the table has them."""
    names = set()
    for file in {*PACKAGE.rglob("*.py")} - {Path(table.__file__)}:
        for node in ast.walk(AtRunTime().visit(ast.parse(file.read_text()))):
            if isinstance(node, ast.ImportFrom) and re.match(
                r"jax\.(_src|core|ffi|interpreters|extend)", node.module or ""
            ):
                names |= {f"{node.module}:{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in ("ad", "batching", "mlir"):
                    names.add(f"jax.interpreters.{node.value.id}:{node.attr}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in LOOKUPS:
                names |= {argument.value for argument in node.args}
    # The attributes of these count.
    return {name for name in names if not name.startswith("jax.interpreters:")}


def test_every_name_has_its_entry():
    paths = [candidates.partition("|")[0] for candidates in ENTRIES]
    assert len(paths) == len({*paths})
    assert used_names() == {*paths}


def has(path):
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("candidates", CURRENT)
def test_jax_has(candidates):
    assert any(map(has, candidates.split("|")))


@pytest.mark.parametrize("file", [name for files in table.FILES for name in files.names])
def test_jax_has_the_file(file):
    assert Path(jax.__file__).with_name("_src").joinpath(file).is_file()


def test_a_file_that_jax_lacks(monkeypatch):
    monkeypatch.setattr(table.os.path, "exists", lambda path: not path.endswith("pjit.py"))
    (sentence,) = table.lacks()
    assert sentence == f"JAX {jax.__version__} has no pjit.py: {table.WAITING.without}"


@pytest.fixture(scope="module")
def try_change():
    """Try what works after a change of JAX's (changed_jax.py)."""
    command = [sys.executable, str(Path(__file__).with_name("changed_jax.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def try_change(**change):
            process.stdin.write(json.dumps(change) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield try_change
        process.stdin.close()


def check_works(outcome, broken=None):
    """Everything works at full speed, with a single exception, and nothing is said."""
    assert list(outcome["errors"]) == ([broken] if broken else []), outcome
    assert outcome["warnings"] == []
    assert outcome["calls"] == 0


def test_unchanged(try_change):
    outcome = try_change()
    check_works(outcome)
    assert outcome["doctor"] == []


def missing_names():
    """The first place of each name, and all of them."""
    return [
        pytest.param(paths[:count], "|".join(paths), id="|".join(paths[:count]))
        for paths in (candidates.split("|") for candidates in CURRENT)
        for count in sorted({1, len(paths)})
    ]


@pytest.mark.parametrize(("paths", "candidates"), missing_names())
def test_without(try_change, paths, candidates):
    outcome = try_change(without=paths)
    entry, (name, *_) = ENTRIES[candidates], paths
    shown = f"JAX {jax.__version__}, which has no {name.replace(':', '.')} ({entry.use})"
    if any(has(path) for path in candidates.split("|") if path not in paths):
        check_works(outcome)
        assert outcome["doctor"] == []
    elif entry.without:
        check_works(outcome, BROKEN.get(name))
        assert outcome["doctor"] == [
            f"JAX {jax.__version__} has no {name.replace(':', '.')}: {entry.without}"
        ]
    else:
        version = importlib.metadata.version("mpi4jax")
        assert outcome["import"].startswith(
            f"ImportError: mpi4jax {version} was tested with JAX "
            f"{table.OLDEST_TESTED_JAX} to {table.LATEST_TESTED_JAX}, and can't work with "
            f"{shown}. Install"
        )


SLOW = (
    "calls of jitted functions with operations of mpi4jax take about 30 times as long as "
    "they could, as JAX passes them a token: "
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"function": LOWERED.function}, f"has no function {LOWERED.function}"),
        *(
            (
                {"function": LOWERED.function, "variable": path.partition(".")[0]},
                f"has no variable {path} in {LOWERED.function}",
            )
            for path in LOWERED.variables
        ),
        ({"event": "JAXPR_TO_MLIR_MODULE_EVENT"}, f"does not announce {LOWERED.event}"),
        # Emptied, it does not count: JAX expects a token that the program does not take.
        ({"function": LOWERED.function, "copied": "ordered_effects"}, "raises"),
    ],
    ids=str,
)
def test_slow_calls(try_change, change, why):
    """Calls are made JAX's way, and one line says so."""
    outcome = try_change(**change)
    assert outcome["errors"] == {}
    (warning,) = outcome["warnings"]
    assert warning.startswith(SLOW)
    assert why in warning
    assert outcome["calls"] > 10
    has_lines = "copied" in change
    sentences = [f"JAX {jax.__version__} {why}: {LOWERED.without}"]
    assert outcome["doctor"] == ([] if has_lines else sentences)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"function": COMPILED.function}, f"has no function {COMPILED.function}"),
        *(
            (
                {"function": COMPILED.function, "variable": name},
                f"has no variable {name} in {COMPILED.function}",
            )
            for name in COMPILED.variables
        ),
        ({"event": "BACKEND_COMPILE_EVENT"}, f"does not announce {COMPILED.event}"),
    ],
    ids=str,
)
def test_compiled_programs_are_not_seen(try_change, change, why):
    """A change of a variable with several names takes the one that this JAX has."""
    outcome = try_change(**change)
    check_works(outcome)
    assert outcome["doctor"] == [f"JAX {jax.__version__} {why}: {COMPILED.without}"]


def test_cleared_listeners(try_change):
    """The next program that is lowered is seen again."""
    check_works(try_change(cleared=True))


@pytest.mark.skipif(CURRENT != ENTRIES, reason="JAX lacks names that newer versions have")
def test_the_warning_about_a_newer_jax_points_to_doctor(try_change):
    hint = "It lacks something that mpi4jax uses: `python -m mpi4jax doctor` says what"
    (warning,) = try_change(version="99.1.0")["warnings"]
    assert hint not in warning
    (warning,) = try_change(version="99.1.0", without=["jax._src.dispatch:runtime_tokens"])[
        "warnings"
    ]
    assert hint in warning


def test_doctor(launch):
    """All processes try the calls, and the first one says that they are slow."""
    done = launch(
        """
        import sys
        from unittest.mock import patch
        from jax._src import dispatch
        from mpi4jax._commands import doctor
        from mpi4jax.__main__ import main

        dispatch.JAXPR_TO_MLIR_MODULE_EVENT = "/jax/new"
        with patch.object(doctor, "measure", list):
            sys.exit(main(["doctor"]))
        """,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr
    why = f"JAX {jax.__version__} does not announce {LOWERED.event}"
    assert f"note: rank 0: {SLOW}{why}\n" in done.stdout
    assert f"note: {why}: {LOWERED.without}\n" in done.stdout
