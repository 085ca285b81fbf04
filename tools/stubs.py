"""Writes `mpi4jax/experimental/tokens/__init__.pyi`: the functions there are made at run
time, where editors and type checkers do not see them.

    python tools/stubs.py

needs an environment in which mpi4jax can be imported (Python 3.11 or later).
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4jax import notoken
from mpi4jax._internal.forms.token import add_token, is_operation, signature_with_token
from mpi4jax.experimental import tokens

FOLDER = Path(__file__).resolve().parent.parent / "mpi4jax" / "experimental" / "tokens"

HEAD = "# Written by `make stubs` (tools/stubs.py) from the forms without tokens."

LINE_LENGTH = 92

#: The names in signatures, by the modules that they are imported from.
IMPORTS = {
    "collections.abc": ("Callable",),
    "typing": ("TypeVar", "overload"),
    "..._internal.arguments.types": (
        *("Array", "ArrayLike", "Comm", "Counts", "Integer", "Op"),
        *("RankTree", "Status", "Token"),
    ),
    "..._internal.nonblocking.requests": ("Request",),
    "..._internal.operations._arguments": ("ANY_SOURCE", "ANY_TAG"),
}

#: The defaults of parameters that differ from MPI to MPI, if they are negative.
WILDCARDS = {"source": "ANY_SOURCE", "tag": "ANY_TAG", "recvtag": "ANY_TAG"}


class Name:
    """A value that is shown by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def stub(plain: ModuleType, with_tokens: ModuleType) -> str:
    """The text of a stub for the functions of a module, each with those without tokens."""
    names = with_tokens.__all__
    body = "".join(
        text
        for name in names
        for text in declarations(getattr(plain, name), getattr(with_tokens, name))
    )
    variables = [name for name in ("T", "R") if re.search(rf"\b{name}\b", body)]
    if variables:
        made = "".join(f'{name} = TypeVar("{name}")\n' for name in variables)
        body = f"{made}\n{body}"
    imports = imports_for(body)
    imports += ["from . import tree as tree"] if hasattr(with_tokens, "tree") else []
    listed = "".join(f'    "{name}",\n' for name in names)
    return "\n".join([HEAD, *imports, "", f"__all__ = [\n{listed}]\n", body.rstrip(), ""])


def imports_for(body: str) -> list[str]:
    """The lines that import what a text uses, as ruff formats them."""
    lines = []
    for module, imported in IMPORTS.items():
        used = [name for name in imported if re.search(rf"\b{name}\b", body)]
        line = f"from {module} import {', '.join(used)}"
        if len(line) > LINE_LENGTH:
            names = "".join(f"    {name},\n" for name in used)
            line = f"from {module} import (\n{names})"
        lines += [line] if used else []
        lines += [""] if module == "typing" else []
    return lines


def declarations(plain: Callable[..., Any], function: Callable[..., Any]) -> Iterator[str]:
    """A function's declaration, or its overloads, of which the first has the docstring."""
    signatures = [
        with_token
        for signature in signatures_of(plain)
        for with_token in signatures_with_token(plain, signature)
    ]
    prefix = "@overload\n" if len(signatures) > 1 else ""
    doc = f'\n    """{function.__doc__}"""\n\n'
    for signature in signatures:
        yield prefix + declaration(function.__name__, signature) + doc
        doc = " ...\n"


def signatures_of(plain: Callable[..., Any]) -> list[inspect.Signature]:
    """The signatures of a function without tokens: of its overloads, if it has some."""
    function = inspect.unwrap(plain)
    overloads = [inspect.signature(overload) for overload in typing.get_overloads(function)]
    if is_operation(plain):
        return overloads or [inspect.signature(function)]
    signature = inspect.signature(plain)
    requests = [of_request(overload, {*signature.parameters}) for overload in overloads]
    return [*dict.fromkeys(requests)] or [signature]


def of_request(signature: inspect.Signature, names: set[str]) -> inspect.Signature:
    """The signature of an operation's nonblocking form, which may lack some parameters."""
    parameters = [p for name, p in signature.parameters.items() if name in names]
    returned = f"Request[{signature.return_annotation}]"
    return signature.replace(parameters=parameters, return_annotation=returned)


def signatures_with_token(
    plain: Callable[..., Any], signature: inspect.Signature
) -> Iterator[inspect.Signature]:
    """The signatures of a form with tokens, from the one without."""
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
    return {FOLDER / "__init__.pyi": stub(notoken, tokens)}


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
