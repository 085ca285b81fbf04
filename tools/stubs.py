"""Writes stubs for the functions that are made at run time, where editors and type checkers
do not see them: the forms with tokens, and the nonblocking ones.

    python tools/stubs.py

needs an environment in which mpi4jax can be imported (Python 3.11 or later).
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4jax import notoken
from mpi4jax._internal.forms.token import add_token, is_operation, signature_with_token
from mpi4jax._internal.nonblocking import functions
from mpi4jax.experimental import tokens

PACKAGE = Path(__file__).resolve().parent.parent / "mpi4jax"

HEAD = "# Written by `make stubs` (tools/stubs.py) from the functions themselves."

LINE_LENGTH = 92

#: The names in signatures, by the modules that they are imported from: of the standard
#: library, or of `_internal`.
IMPORTS = {
    "collections.abc": ("Callable",),
    "typing": ("TypeVar", "overload"),
    "arguments.types": (
        *("Array", "ArrayLike", "Comm", "Counts", "Integer", "Op"),
        *("RankTree", "Status", "Token"),
    ),
    "nonblocking.requests": ("Request",),
    "operations._arguments": ("ANY_SOURCE", "ANY_TAG"),
}

#: The defaults of parameters that differ from MPI to MPI, if they are negative.
WILDCARDS = {"source": "ANY_SOURCE", "tag": "ANY_TAG", "recvtag": "ANY_TAG"}


class Name:
    """A value that is shown by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def stub(
    module: ModuleType,
    internal: str,
    signatures: Callable[[str], Iterable[inspect.Signature]],
) -> str:
    """The text of a stub.

    Arguments:
        module: The module, which lists its functions.
        internal: The package `_internal`, as seen from the stub.
        signatures: Gives the signatures of a function: of its overloads, if it has some.

    """
    names = module.__all__
    body = "".join(
        text
        for name in names
        for text in declarations(getattr(module, name), [*signatures(name)])
    )
    variables = [name for name in ("T", "R") if re.search(rf"\b{name}\b", body)]
    if variables:
        made = "".join(f'{name} = TypeVar("{name}")\n' for name in variables)
        body = f"{made}\n{body}"
    imports = imports_for(body, internal)
    imports += ["from . import tree as tree"] if hasattr(module, "tree") else []
    listed = "".join(f'    "{name}",\n' for name in names)
    return "\n".join([HEAD, *imports, "", f"__all__ = [\n{listed}]\n", body.rstrip(), ""])


def imports_for(body: str, internal: str) -> list[str]:
    """The lines that import what a text uses, as ruff formats them."""
    lines = []
    for module, imported in IMPORTS.items():
        used = [name for name in imported if re.search(rf"\b{name}\b", body)]
        is_ours = module not in sys.stdlib_module_names and module != "collections.abc"
        module = f"{internal}.{module}" if is_ours else module
        line = f"from {module} import {', '.join(used)}"
        if len(line) > LINE_LENGTH:
            names = "".join(f"    {name},\n" for name in used)
            line = f"from {module} import (\n{names})"
        lines += [line] if used else []
        lines += [""] if module == "typing" else []
    return lines


def declarations(
    function: Callable[..., Any], signatures: Sequence[inspect.Signature]
) -> Iterator[str]:
    """A function's declaration, or its overloads, of which the first has the docstring."""
    prefix = "@overload\n" if len(signatures) > 1 else ""
    doc = f'\n    """{function.__doc__}"""\n\n'
    for signature in signatures:
        yield prefix + declaration(function.__name__, signature) + doc
        doc = " ...\n"


def signatures_of(plain: Callable[..., Any]) -> list[inspect.Signature]:
    """The signatures of a function without tokens: of its overloads, if it has some."""
    signature = inspect.signature(plain)
    if is_operation(plain):
        signature = inspect.signature(inspect.unwrap(plain))
        return overloads_of(plain) or [signature]
    blocking = getattr(notoken, plain.__name__.removeprefix("i"), plain)
    requests = [
        of_request(overload, signature)
        for overload in overloads_of(blocking)
        if all(
            name in signature.parameters or parameter.default is not parameter.empty
            for name, parameter in overload.parameters.items()
        )
    ]
    return [*dict.fromkeys(requests)] or [signature]


def overloads_of(function: Callable[..., Any]) -> list[inspect.Signature]:
    return [*map(inspect.signature, typing.get_overloads(inspect.unwrap(function)))]


def of_request(overload: inspect.Signature, form: inspect.Signature) -> inspect.Signature:
    """The overload of a nonblocking form, which may lack some of the parameters."""
    parameters = [p for name, p in overload.parameters.items() if name in form.parameters]
    returned = f"Request[{overload.return_annotation}]"
    return overload.replace(parameters=parameters, return_annotation=returned)


def signatures_with_token(plain: Callable[..., Any]) -> Iterator[inspect.Signature]:
    """The signatures of a form with tokens, from the one without."""
    for signature in signatures_of(plain):
        if is_operation(plain):
            yield signature_with_token(signature)
        else:
            yield add_token(signature, default=None, annotation="None")
            pair = f"tuple[{signature.return_annotation}, Token]"
            signature = signature.replace(return_annotation=pair)
            yield add_token(signature, annotation="Token")


def declaration(name: str, signature: inspect.Signature) -> str:
    """The head of a function, one parameter a line."""
    lines = [f"def {name}("]
    was_keyword_only = False
    for parameter in signature.parameters.values():
        is_keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if is_keyword_only and not was_keyword_only:
            lines.append("    *,")
        was_keyword_only = is_keyword_only
        if type(parameter.default) is int and parameter.default < 0:
            parameter = parameter.replace(default=Name(WILDCARDS[parameter.name]))
        lines.append(f"    {parameter},".replace("'", ""))
    return "\n".join([*lines, f") -> {signature.return_annotation}:"])


def stubs() -> dict[Path, str]:
    """The texts of all stubs."""
    return {
        PACKAGE / "experimental/tokens/__init__.pyi": stub(
            tokens,
            "..._internal",
            lambda name: signatures_with_token(getattr(notoken, name)),
        ),
        PACKAGE / "_internal/nonblocking/functions.pyi": stub(
            functions, ".", lambda name: signatures_of(getattr(functions, name))
        ),
    }


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
