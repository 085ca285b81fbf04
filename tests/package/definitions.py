"""Follows go-to-definition from a user's name down to another function, as an editor does.

    python definitions.py PYTHON CACHE mpi4jax.allreduce:VaryingPrimitive.bind ...

PYTHON is that of the environment with mpi4jax, CACHE a folder of this process alone. For
each pair, prints a line with the functions on the shortest way.
"""

import ast
import collections
import functools
import sys
from pathlib import Path

import jedi

USER = "import mpi4jax\nfrom mpi4jax import halo, notoken, unstructured\n"


@functools.cache
def source_of(path):
    return Path(path).read_text()


def names_called(definition):
    """The positions of what a function calls, and of what it passes to a call."""
    for function in ast.walk(ast.parse(source_of(definition.module_path))):
        is_function = isinstance(function, ast.FunctionDef)
        if not is_function or function.name != definition.name:
            continue
        if not function.lineno <= definition.line <= function.end_lineno:
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call):
                for name in (call.func, *call.args):
                    if isinstance(name, ast.Name | ast.Attribute):
                        yield name.end_lineno, name.end_col_offset - 1


def way(start, target, environment):
    """The definitions on the shortest way from a name to a function, this one included."""

    def definitions_at(path, source, line, column):
        script = jedi.Script(source, path=path, environment=environment)
        return script.goto(line, column, follow_imports=True)

    user = f"{USER}{start}\n"
    last_line = user.count("\n")
    first = definitions_at(None, user, last_line, len(start) - 1)
    ways = collections.deque((x,) for x in first)
    followed = set()
    while ways:
        way = ways.popleft()
        definition = way[-1]
        name = definition.full_name or ""
        if name.endswith(target):
            return way
        path = definition.module_path
        if name in followed or path is None or "mpi4jax" not in path.parts:
            continue
        followed.add(name)
        for line, column in names_called(definition):
            callees = definitions_at(path, source_of(path), line, column)
            ways.extend((*way, callee) for callee in callees)
    return ()


if __name__ == "__main__":
    python, jedi.settings.cache_directory, *pairs = sys.argv[1:]
    environment = jedi.create_environment(python, safe=False)
    for pair in pairs:
        definitions = way(*pair.split(":"), environment)
        print(*(definition.full_name for definition in definitions))
