"""Writes the forms that follow from the functions in mpi4jax/_internal/operations: the
nonblocking ones and those with tokens, and the list of all names.

    python tools/forms.py [--check]

`make format` runs it, and `make lint` checks that nothing has changed since.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path

from environments import ROOT, tools

PACKAGE = ROOT / "mpi4jax"
INTERNAL = PACKAGE / "_internal"

HEAD = "# Written by tools/forms.py (`make format`) from _internal/operations.\n"

#: The names in signatures, by modules of `_internal`. What a file does not use is removed.
TYPES = """\
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from {internal}.arguments.types import (
    Array, ArrayLike, Comm, Counts, Integer, Op, Rank, RankTree, Status, T, Token
)
from {internal}.operations._arguments import ANY_SOURCE, ANY_TAG
"""


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str
    default: str | None = None
    is_keyword: bool = True

    def __str__(self) -> str:
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.name}: {self.annotation}{default}"

    @property
    def argument(self) -> str:
        """The argument that passes this parameter to a function with such a parameter."""
        return f"{self.name}={self.name}" if self.is_keyword else self.name


@dataclass(frozen=True)
class Signature:
    parameters: tuple[Parameter, ...]
    returns: str

    def __str__(self) -> str:
        texts = list(map(str, self.parameters))
        positional = [p for p in self.parameters if not p.is_keyword]
        if len(positional) < len(texts):
            texts.insert(len(positional), "*")
        return f"({', '.join(texts)}) -> {self.returns}"

    @property
    def arguments(self) -> str:
        """The arguments that pass on all parameters."""
        return ", ".join(p.argument for p in self.parameters)

    @property
    def pair(self) -> str:
        """The type of the result with a token."""
        return f"tuple[{self.returns}, Token]"

    def with_parameter(self, parameter: Parameter, returns: str) -> Signature:
        return Signature((*self.parameters, parameter), returns)


@dataclass(frozen=True)
class Function:
    """A function of the API without tokens."""

    name: str
    #: In `_internal`.
    module: str
    signature: Signature
    overloads: tuple[Signature, ...] = ()
    doc: str = ""
    #: The parameters of the nonblocking form. Empty for what is no operation.
    started_with: tuple[str, ...] = ()
    #: Whether there is a function for a :class:`LinearToken`.
    is_linear: bool = False

    @property
    def has_result(self) -> bool:
        return self.signature.returns != "None"

    def definition(self, signature: Signature, doc: str, body: str) -> str:
        """The source of a function of this name."""
        doc = textwrap.indent(f'"""{doc}"""', "    ", lambda line: bool(line.strip()))
        return f"def {self.name}{signature}:\n{doc}\n{textwrap.indent(body, '    ')}\n\n"

    def overloaded(self, signatures: Iterable[Signature]) -> str:
        """The source of overloads, if there are several."""
        distinct = [*dict.fromkeys(signatures)]
        texts = [f"@overload\ndef {self.name}{signature}: ...\n" for signature in distinct]
        return "".join(texts) if len(texts) > 1 else ""


def signature_of(function: ast.FunctionDef) -> Signature:
    arguments = function.args
    count = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * count, *arguments.defaults, *arguments.kw_defaults]
    parameters = [
        Parameter(
            x.arg,
            ast.unparse(x.annotation) if x.annotation else "",
            None if default is None else ast.unparse(default),
            is_keyword=x in arguments.kwonlyargs,
        )
        for x, default in zip(
            [*arguments.args, *arguments.kwonlyargs], defaults, strict=True
        )
        if x.arg != "token"
    ]
    assert function.returns, function.name
    return Signature(tuple(parameters), ast.unparse(function.returns))


def functions_of(path: Path) -> dict[str, list[ast.FunctionDef]]:
    """The functions of a file, with their overloads."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    return functions


def function_in(module: str, name: str) -> Function:
    functions = functions_of(INTERNAL / f"{module.replace('.', '/')}.py")
    *overloads, function = functions[name]
    calls = functions.get("call", [])
    return Function(
        name,
        module,
        signature_of(function),
        tuple(map(signature_of, overloads)),
        (ast.get_docstring(function) or "").strip(),
        tuple(p.name for call in calls for p in signature_of(call).parameters[1:]),
        "with_linear_token" in functions,
    )


def joined(annotations: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(annotations))


def nonblocking(operation: Function) -> Function:
    """The nonblocking form, which takes what `call` in the operation's file takes."""
    names = {*operation.started_with}
    overloads = []
    for signature in operation.overloads or [operation.signature]:
        parameters = tuple(p for p in signature.parameters if p.name in names)
        left_out = {*signature.parameters} - {*parameters}
        if {p.name for p in parameters} == names and all(p.default for p in left_out):
            overloads.append(Signature(parameters, f"Request[{signature.returns}]"))
    parameters = tuple(
        replace(columns[0], annotation=joined(p.annotation for p in columns))
        for columns in zip(*(x.parameters for x in overloads), strict=True)
    )
    return Function(
        f"i{operation.name}",
        "nonblocking.functions",
        Signature(parameters, joined(x.returns for x in overloads)),
        tuple(overloads),
    )


def operations() -> list[Function]:
    paths = sorted((INTERNAL / "operations").glob("[a-z]*.py"))
    return [function_in(f"operations.{path.stem}", path.stem) for path in paths]


OTHERS = {
    "ordering_barrier": "nonblocking.overlap",
    "overlap": "nonblocking.overlap",
    "shared": "shared",
    "wait": "nonblocking.requests",
}


def names_file(functions: Iterable[Function]) -> str:
    """The text of notoken/__init__.py."""
    head = f'{HEAD}"""The operations without tokens, as in mpi4jax 0.8 and later."""\n'
    imports = [f"from .._internal.{x.module} import {x.name}" for x in functions]
    names = f"__all__ = {[x.name for x in functions]!r}"
    tree = "# It takes its names from here.\nfrom . import tree as tree"
    return "\n".join([head, *imports, names, tree])


def nonblocking_file(forms: dict[Function, Function]) -> str:
    """The text of nonblocking/functions.py, from the blocking form of each function."""
    modules = ", ".join(x.name for x in forms.values())
    head = (
        f"{HEAD}"
        '"""The nonblocking form of each operation (MPI-4.1 §3.7, §6.12)."""\n'
        f"{TYPES.format(internal='.')}"
        f"from ..operations import {modules}\n"
        "from .requests import Request, start_call\n"
    )
    return "\n".join([head, *starmap(nonblocking_source, forms.items())])


def nonblocking_source(form: Function, blocking: Function) -> str:
    names = [p.name for p in blocking.signature.parameters]
    left_out = [f"``{name}``" for name in names if name not in blocking.started_with]
    if "``capacity``" in left_out:
        left_out = ["``capacity``, for which counts would have to be exchanged first"]
    but = f", but for {' and '.join(left_out)}" if left_out else ""
    result = "" if blocking.has_result else " The result is None."
    doc = f"""\
Start :func:`{blocking.name}`, which :func:`wait` completes.

{filled(f"The arguments are those of :func:`{blocking.name}`{but}.")}

Returns:
    A request, to be passed to :func:`wait` once.{result}

"""
    call = f'{blocking.name}.call("{form.name}", {form.signature.arguments})'
    return form.overloaded(form.overloads) + form.definition(
        form.signature, doc, f"return start_call({call})"
    )


def tokens_file(functions: Iterable[Function]) -> str:
    """The text of experimental/tokens/__init__.py."""
    linear = "".join(
        f"from ..._internal.{x.module} import with_linear_token as {x.name}_with_token\n"
        for x in functions
        if x.is_linear
    )
    head = (
        f"{HEAD}"
        '"""The operations with tokens, as in mpi4jax 0.3 to 0.7.\n\n'
        "Functions that are new since then return a token only if one is passed.\n"
        '"""\n'
        f"{TYPES.format(internal='..._internal')}"
        "from ... import notoken\n"
        "from ..._internal.older_api.token import (\n"
        "    LinearToken, and_token, check_token, checked_token)\n"
        "from ..._internal.nonblocking.requests import Request\n"
        f"{linear}\n"
        f"__all__ = {[x.name for x in functions]!r}\n"
        'R = TypeVar("R")\n'
    )
    sources = [
        (with_token if x.started_with else with_optional_token)(x) for x in functions
    ]
    tree = "# It takes its names from here.\nfrom . import tree as tree  # noqa: E402\n"
    return "\n".join([head, *sources, tree])


TOKEN = Parameter("token", "Token | None", "None")
NO_TOKEN = replace(TOKEN, annotation="None")
GIVEN_TOKEN = Parameter("token", "Token")
TOKEN_ARGUMENT = """\
    token (Token): Accepted and returned, for programs that pass it from call to call.
        Operations run in program order with and without it.
"""
TOKEN_RESULT = "The given token, or a new one."


def with_token(operation: Function) -> str:
    """The source of an operation that takes a token and returns one."""

    def add_token(signature: Signature) -> Signature:
        returns = signature.pair if operation.has_result else "Token"
        return signature.with_parameter(TOKEN, returns)

    name, arguments = operation.name, operation.signature.arguments
    call = f"notoken.{name}({arguments})"
    lines = [f'token = checked_token("{name}", token)']
    if len({len(x.parameters) for x in operation.overloads}) > 1:
        # None of the overloads takes all of them.
        lines += [f"function: Any = notoken.{name}"]
        call = f"function({arguments})"
    if operation.is_linear:
        call_linear = f"return {name}_with_token(token, {arguments})"
        lines += [f"if type(token) is LinearToken:\n    {call_linear}"]
    lines += [f"return {call}, token"] if operation.has_result else [call, "return token"]

    head, _, result = operation.doc.partition("\n\nReturns:\n")
    if operation.has_result:
        items = [
            textwrap.indent(filled(text, first="- "), "    ")
            for text in (" ".join(result.split()), TOKEN_RESULT)
        ]
        result = "\n".join(["    A tuple of two.\n", *items])
    else:
        result = f"    {TOKEN_RESULT}"
    doc = f"{head}\n{TOKEN_ARGUMENT}\nReturns:\n{result}\n\n"
    return operation.overloaded(map(add_token, operation.overloads)) + operation.definition(
        add_token(operation.signature), doc, "\n".join(lines)
    )


def with_optional_token(function: Function) -> str:
    """The source of a function that returns a token only if it takes one."""

    def add_token(signature: Signature) -> Iterator[Signature]:
        yield signature.with_parameter(NO_TOKEN, signature.returns)
        yield signature.with_parameter(GIVEN_TOKEN, signature.pair)

    signature = function.signature
    overloads = [x for s in function.overloads or [signature] for x in add_token(s)]
    returned = joined(x.returns for x in overloads)
    doc = f"Call :func:`mpi4jax.notoken.{function.name}`, with a token or without."
    body = (
        f'check_token("{function.name}", token)\n'
        f"return and_token(notoken.{function.name}({signature.arguments}), token)"
    )
    return function.overloaded(overloads) + function.definition(
        signature.with_parameter(TOKEN, returned), doc, body
    )


def filled(text: str, first: str = "") -> str:
    """A text in lines that fit into a docstring."""
    return textwrap.fill(
        text,
        width=84,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def formatted(text: str) -> str:
    """A text as ruff formats it, without what it does not use."""
    # Not under its own name: what an __init__.py imports is never unused.
    options = ["--stdin-filename", str(PACKAGE / "forms.py"), "-"]
    ruff = str(tools() / "bin" / "ruff")
    fix = ["check", "--fix-only", "--quiet", "--select", "F401,I"]
    for arguments in ([*fix, *options], ["format", "--quiet", *options]):
        command = [ruff, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        text = done.stdout
    return text


def files() -> dict[Path, str]:
    """The texts of all files."""
    forms = {nonblocking(operation): operation for operation in operations()}
    functions = [function_in(module, name) for name, module in OTHERS.items()]
    functions += [*forms, *forms.values()]
    functions.sort(key=lambda x: x.name)
    return {
        PACKAGE / "notoken/__init__.py": formatted(names_file(functions)),
        INTERNAL / "nonblocking/functions.py": formatted(nonblocking_file(forms)),
        PACKAGE / "experimental/tokens/__init__.py": formatted(tokens_file(functions)),
    }


def main() -> int:
    stale = {path: text for path, text in files().items() if path.read_text() != text}
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: run `make format`")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
