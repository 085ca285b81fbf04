"""The lists in which an operation has to be named, and what one form says of the other."""

import importlib
import inspect
import re

import imports
import mpi4py.MPI
import pytest

import mpi4jax
from mpi4jax import _core, experimental, notoken
from mpi4jax.__main__ import parser
from mpi4jax._internal.mpi.binding import abi
from mpi4jax._testing.cases import NAMES as OPERATIONS
from mpi4jax.experimental import tokens

#: The other functions: their forms with tokens may be called without.
OTHERS = sorted({*notoken.__all__} - {*OPERATIONS})
#: Those that start an operation.
NONBLOCKING = [name for name in OTHERS if name[0] == "i" and name[1:] in OPERATIONS]
NAMESPACES = (mpi4jax, notoken, experimental.notoken, tokens)


def test_every_list_has_every_operation(root):
    folder = root / "mpi4jax" / "_internal" / "operations"
    files = {path.stem for path in folder.glob("[a-z]*.py")}
    on_host, on_device = _core.load(mpi4py.MPI.__file__, abi())
    documented = (root / "docs" / "api.md").read_text()
    usage = (root / "docs" / "usage.md").read_text()
    pattern = "\n## Operations\n(.*?)\n## .*\n## Operations with tokens\n(.*?)\n## "
    ((without, with_tokens),) = re.findall(pattern, documented, re.S)
    lists = {
        "the table of cases": OPERATIONS,
        "the core's handlers": [name for name, _ in on_host if name in files],
        "those for devices": [name for name, _ in on_device if name in files],
        "docs/api.md, with tokens": re.findall(r":: mpi4jax\.(\w+)$", with_tokens, re.M),
        "docs/api.md": re.findall(r":: mpi4jax\.notoken\.(\w+)$", without, re.M),
        "docs/usage.md": {*re.findall(r"^\| `(\w+)\(", usage, re.MULTILINE)},
    }
    for name, listed in lists.items():
        assert sorted(listed) == sorted(files), name


def test_every_namespace_has_every_name():
    assert {*NONBLOCKING} == {f"i{name}" for name in OPERATIONS}
    assert {*NONBLOCKING, "overlap", "wait"} <= {*OTHERS}
    for namespace in NAMESPACES:
        missing = {*notoken.__all__} - {*namespace.__all__}
        assert not missing, namespace
        assert sorted(namespace.__all__) == namespace.__all__
        assert all(hasattr(namespace, name) for name in namespace.__all__)
        tree = importlib.import_module(f"{namespace.__name__}.tree")
        assert tree.__all__ == notoken.__all__
        for name in tree.__all__:
            assert getattr(tree, name) is getattr(namespace, name)
    assert tokens.__all__ == experimental.notoken.__all__ == notoken.__all__


def test_every_list_has_every_other_function(root):
    documented = (root / "docs" / "api.md").read_text()
    pattern = r"\n## (?:Messages in flight|Values that all processes share)\n(.*?)\n## "
    sections = "\n".join(re.findall(pattern, documented, re.S))
    functions = re.findall(r"autofunction:: mpi4jax\.notoken\.(\w+)$", sections, re.M)
    assert sorted(functions) == OTHERS


def parameters_of(function):
    """The parameters of a function, apart from its token, and that."""
    *parameters, token = inspect.signature(function).parameters.values()
    assert token.name == "token"
    return parameters, str(token)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_form_with_tokens(name):
    """It takes what the other form takes, and a token."""
    plain, with_token = getattr(notoken, name), getattr(tokens, name)
    parameters, _ = parameters_of(plain)
    assert parameters_of(with_token) == (parameters, "token: 'Token | None' = None")
    result = inspect.signature(plain).return_annotation
    returned = "Token" if result == "None" else f"tuple[{result}, Token]"
    assert inspect.signature(with_token).return_annotation == returned
    assert with_token.__name__ == plain.__name__ == name
    for parameter in parameters:
        assert re.search(rf"\n        {parameter.name}[ :]", with_token.__doc__)
        assert re.search(rf"\n        {parameter.name}[ :]", plain.__doc__)
    assert "\n        token (Token): " in with_token.__doc__


@pytest.mark.parametrize("name", NONBLOCKING)
def test_the_nonblocking_form(name):
    """It takes what the blocking form takes, except what can't be had before the end."""
    blocking, start = getattr(notoken, name[1:]), getattr(notoken, name)
    parameters = [*inspect.signature(start).parameters]
    others, _ = parameters_of(blocking)
    left_out = [p.name for p in others if p.name not in parameters]
    assert [p.name for p in others if p.name in parameters] == parameters
    assert left_out in ([], ["status"], ["capacity", "fill_value"])
    assert inspect.signature(start).return_annotation.startswith("Request[")
    assert all(f"``{text}``" in start.__doc__ for text in left_out[:1])


@pytest.mark.parametrize("name", OTHERS)
def test_the_form_with_an_optional_token(name):
    """It takes what the other form takes, and a token, which it returns if it is given."""
    plain, with_token = getattr(notoken, name), getattr(tokens, name)
    parameters = list(inspect.signature(plain).parameters.values())
    assert parameters_of(with_token) == (parameters, "token: 'Token | None' = None")
    results = inspect.signature(plain).return_annotation.split(" | ")
    returned = inspect.signature(with_token).return_annotation
    assert returned == " | ".join(f"{x} | tuple[{x}, Token]" for x in results)
    assert with_token.__name__ == plain.__name__ == name


def check_one_way(graph):
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for imported in sorted(graph[module]):
                visit(imported)
            path.pop()
            done.add(module)

    for module in sorted(graph):
        visit(module)


def test_modules_and_folders_import_one_way(root):
    """Neither a module nor a folder imports one that imports it, by whatever way."""
    modules = imports.between_modules(root)
    check_one_way(modules)
    check_one_way(imports.between_folders(modules))


def test_private_modules_of_jax_stand_in_a_table_and_a_file(root):
    for path in (root / "mpi4jax").rglob("*.py"):
        is_compat = path.name in ("jax_compat.py", "private_names.py")
        is_compat = is_compat and path.parent.name == "xla"
        text = path.read_text()
        assert is_compat or not re.search(r"(?<!mpi4)jax\._src", text), path
        assert is_compat or not re.search(r"(import|from) jaxlib|jaxlib\.", text), path


def test_every_command_has_a_module_and_a_section(root):
    commands = re.findall(r"^    (\w+)  ", parser().format_help(), re.MULTILINE)
    assert {"doctor", "bench", "selftest", "trace"} <= {*commands}
    documented = (root / "docs" / "command-line.md").read_text()
    assert re.findall(r"^## (\w+)$", documented, re.MULTILINE) == commands
    for name in commands:
        assert callable(importlib.import_module(f"mpi4jax._commands.{name}").run)


def test_documentation_imports(root):
    """Whatever is documented can be imported under its public name."""
    documented = (root / "docs" / "api.md").read_text()
    for name in re.findall(r"^\.\. auto\w+:: (mpi4jax[\w.]*)", documented, re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
